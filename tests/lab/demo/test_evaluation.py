"""The figures of a condition, its name, and the options that eval-demo rejects."""

from __future__ import annotations

import json
import math

import pytest
from typer.testing import CliRunner

from edgeflow.cli import app
from edgeflow.contract import Pace, Speculation
from edgeflow.lab.demo.evaluation import EvaluationPlan, TableCondition, evaluate, pace_name, result_of
from edgeflow.lab.demo.simulated.episodes import Acted, EpisodeRun
from edgeflow.lab.demo.world.task import EpisodeOutcome
from edgeflow_client.errors import ConfigError
from edgeflow_client.types import Mode
from tests.drawn import drawn, said

__all__ = ["drawn"]  # a fixture here too

MS = 1_000_000
CONDITION = TableCondition(
    mode="speculative", pace=Pace(0, Speculation()), anchored=True, speed=0.05, profile="rtx5090"
)


def acted(at_ms: int, age_ms: int, passes: int = 2, settled: int = 7) -> Acted:
    return Acted(
        captured_ns=(at_ms - age_ms) * MS,
        arrived_ns=at_ms * MS,
        passes=passes,
        settled=settled,
    )


def episode(outcome: EpisodeOutcome, seconds: float, *actions: Acted, overtaken: int = 0) -> EpisodeRun:
    return EpisodeRun(
        outcome=outcome,
        seconds=seconds,
        frames=20,
        begun=len(actions) + overtaken,
        overtaken=overtaken,
        acted=actions,
    )


@pytest.mark.parametrize(
    ("pace", "name"),
    [
        (Pace(1), "serial"),
        (Pace(2), "depth 2"),
        (Pace(7), "pipelined"),
        (Pace(0, Speculation()), "speculative"),
        (Pace(0, Speculation(1)), "speculative, 1 bin"),
        (Pace(0, Speculation(2)), "speculative, 2 bins"),
        (Pace(0, Speculation(0, 1)), "speculative, 1 pass"),
        (Pace(0, Speculation(1, 3)), "speculative, 1 bin, 3 passes"),
        (Pace(0, Speculation(0, 7)), "speculative"),
    ],
)
def test_a_pace_has_a_name(pace, name):
    assert pace_name(pace, 7) == name


def test_the_figures_of_a_condition():
    runs = [
        episode(EpisodeOutcome.SUCCESS, 2.0, acted(200, 100), acted(400, 120, passes=3), overtaken=1),
        episode(EpisodeOutcome.TIMEOUT, 8.0, acted(300, 140, passes=1, settled=4)),
    ]
    result = result_of(CONDITION, [runs], 7, 0.05)
    assert (result.success.successes, result.success.episodes) == (1, 2)
    assert result.seconds_per_success == 10.0
    assert result.fps == pytest.approx(0.3)
    assert (result.age_mean_ms, result.age_p50_ms) == (120.0, 120.0)
    assert result.passes == {1: 1, 2: 1, 3: 1} and result.passes_mean == 2.0
    assert result.overtaken == 1 / 4
    assert result.unsettled == pytest.approx(1 / 3)
    figures = json.loads(json.dumps(result.as_json()))
    assert figures["mode"] == "speculative" and figures["passes"] == {"1": 1, "2": 1, "3": 1}


def test_without_success_or_action_there_is_no_figure():
    result = result_of(CONDITION, [[episode(EpisodeOutcome.TIMEOUT, 8.0)]], 7, 0.05)
    assert math.isinf(result.seconds_per_success) and math.isnan(result.passes_mean)
    figures = result.as_json()
    assert figures["seconds_per_success"] is figures["age_mean_ms"] is figures["passes_mean"] is None
    assert figures["latency_at_execution_ms"]["p50"] is figures["reaction_to_jump_ms"] is None
    assert figures["successes"] == 0


def test_more_passes_than_tokens_are_rejected_with_the_range():
    plan = EvaluationPlan(
        episodes=1,
        modes=[Mode.SPECULATIVE],
        anchored=[True],
        speeds=[0.0],
        profiles=["rtx5090"],
        speculation=Speculation(0, 8),
    )
    with pytest.raises(ConfigError, match="max_passes: must be 1 to 7, got 8"):
        next(evaluate(plan, lambda *_: None))


def test_speculation_without_its_mode_is_rejected():
    result = CliRunner().invoke(app, ["eval-demo", "--mode", "serial", "--max-passes", "1"])
    assert isinstance(result.exception, ConfigError) and "--mode speculative" in str(result.exception)


@pytest.mark.parametrize(("policy", "mode"), [("tokens", "speculative"), ("flow", "serial")])
def test_by_default_eval_demo_takes_the_pace_that_auto_takes(tmp_path, policy: str, mode: str):
    options = ["--episodes", "1", "--profile", "rtx5090", "--policy", policy, "--out", str(tmp_path), "--json"]
    result = CliRunner().invoke(app, ["eval-demo", *options])
    assert result.exit_code == 0, result.output
    assert [row["mode"] for row in json.loads(result.stdout)] == [mode]


def test_eval_demo_writes_a_row_per_mode(tmp_path, drawn):
    options = [
        "--episodes",
        "1",
        "--profile",
        "rtx5090",
        "--mode",
        "speculative",
        "--max-passes",
        "1",
        "--mode",
        "serial",
    ]
    result = CliRunner().invoke(app, ["eval-demo", *options, "--out", str(tmp_path / "out"), "--json"])
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert [row["mode"] for row in report["conditions"]] == ["speculative, 1 pass", "serial"]
    assert report["conditions"][0]["passes_mean"] == 1.0
    assert "Success of demo with its 95 % interval: 1 episodes per bar" in said(drawn["success.png"])
    assert "rtx5090, serial, 0 cm/s" in said(drawn["success.png"])
