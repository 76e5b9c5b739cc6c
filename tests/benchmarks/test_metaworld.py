"""The Meta-World benchmark: ages, the arm's commands, the report; the simulator where its environment is installed."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.metaworld import __main__ as program
from benchmarks.metaworld.ages import AgedMode, combined, measured
from benchmarks.metaworld.ages import given as given_age
from benchmarks.metaworld.arm import ANCHORED, DEFAULT, PRESENT, STEP_M, WITHIN_A_STEP, command
from benchmarks.metaworld.report import FRESH, ConditionRow, TaskCell, as_json, as_text

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-metaworld" / "bin" / "python"
outputs = st.lists(st.floats(-8, 8), min_size=4, max_size=4).map(np.array)
positions = st.lists(st.floats(-0.5, 0.5), min_size=3, max_size=3).map(np.array)


def condition(mode="serial", **changed) -> dict:
    fields = {"mode": mode, "anchored": True, "speed_cm_s": 5.0, "profile": "rtx5090", "episodes": 100}
    return fields | {"age_p50_ms": 156.0} | changed


def result_file(tmp_path: Path, *conditions: dict) -> Path:
    path = tmp_path / "closed-loop.json"
    path.write_text(json.dumps({"conditions": conditions}))
    return path


def test_ages_are_those_of_the_anchored_conditions_asked_for(tmp_path):
    path = result_file(
        tmp_path,
        condition(),
        condition(episodes=200, age_p50_ms=157.0),
        condition(anchored=False, episodes=300, age_p50_ms=1.0),
        condition(speed_cm_s=0.0, episodes=300, age_p50_ms=2.0),
        condition(profile="orin", episodes=300, age_p50_ms=3.0),
        condition("depth", depth=2, age_p50_ms=200.0),
        condition("speculative", tolerance_bins=0, max_passes=1, age_p50_ms=80.0),
        condition("speculative", tolerance_bins=1, max_passes=0, age_p50_ms=120.0),
    )
    assert measured(path, "rtx5090", 5.0) == [
        AgedMode("serial", 157.0),
        AgedMode("depth 2", 200.0),
        AgedMode("speculative max_passes 1", 80.0),
        AgedMode("speculative bins 1", 120.0),
    ]
    with pytest.raises(ValueError, match="no anchored condition"):
        measured(path, "rtx5090", 10.0)


def test_the_committed_results_have_ages():
    newest = max((ROOT / "benchmarks" / "results").glob("closed-loop-cpu-*.json"))
    ages = {mode.name: mode.age_ms for mode in measured(newest, "rtx5090", 5.0)}
    assert ages["serial"] < ages["pipelined"]


@pytest.mark.parametrize("text", ["serial", "=5", "serial=", "serial=-1", "serial=nan", "serial=6000"])
def test_an_age_that_makes_no_sense_is_rejected(text):
    with pytest.raises(ValueError):
        given_age(text)


def test_given_ages_come_before_those_of_the_file_and_all_in_their_order():
    file = [AgedMode("serial", 156.0), AgedMode("pipelined", 384.0)]
    assert combined(file, [given_age("serial=500"), given_age("a=b=10")]) == [
        AgedMode("a=b", 10.0),
        AgedMode("pipelined", 384.0),
        AgedMode("serial", 500.0),
    ]


@pytest.mark.parametrize(("age_ms", "steps"), [(0, 0), (80, 6), (150, 12), (156, 12), (384, 31)])
def test_an_age_in_control_steps(age_ms, steps):
    assert AgedMode("any", age_ms).steps == steps


@settings(deadline=None)
@given(outputs, positions)
def test_without_age_every_motion_is_the_simulators_own(values, here):
    for motion in (PRESENT, ANCHORED, DEFAULT, WITHIN_A_STEP):
        np.testing.assert_allclose(command(motion, values, here, here, 0), np.clip(values, -1, 1), atol=1e-9)


@settings(deadline=None)
@given(outputs, positions, positions, st.integers(0, 40))
def test_the_commands_of_an_old_frame(values, frame, now, age_steps):
    """The arithmetic, written out."""
    values = np.clip(values, -1, 1)
    displaced = values[:3] * STEP_M
    ahead = 1 + min(age_steps, 4)
    for motion, target in (
        (PRESENT, now + displaced),
        (ANCHORED, frame + displaced),
        (DEFAULT, frame + ahead * displaced),
    ):
        expected = np.append(np.clip((target - now) / STEP_M, -1, 1), values[3])
        np.testing.assert_allclose(command(motion, values, frame, now, age_steps), expected, atol=1e-7)


def test_an_output_at_its_limit_is_not_extended_within_the_limits_of_one_step():
    here, still = np.zeros(3), np.zeros(3)
    half, full = np.array([0.25, 0, 0, 1]), np.array([1.0, 0, 0, 1])
    behind = np.array([0.02, 0, 0])  # where the arm is by now
    assert command(WITHIN_A_STEP, half, here, still, 4)[0] == pytest.approx(1.0)
    assert command(WITHIN_A_STEP, full, here, behind, 4)[0] == pytest.approx(-1.0)
    assert command(DEFAULT, full, here, behind, 4)[0] == pytest.approx(1.0)


def rows() -> list[ConditionRow]:
    some, none, old = (100, 300, None), (None, None, None), AgedMode("serial", 156.0)
    steps = ((FRESH, PRESENT, some, some), (old, ANCHORED, none, none), (old, DEFAULT, some, none))
    return [ConditionRow(mode, way.name, (TaskCell("push", a), TaskCell("basketball", b))) for mode, way, a, b in steps]


def test_the_report_prints_losses_like_wins():
    head, fresh, anchored, _ = as_text(rows()).splitlines()
    assert head.split() == ["mode", "age", "motion", "push", "basketball", "all", "95", "%"]
    assert fresh.split()[:2] == ["no", "delay"] and "4 of 6" in fresh
    assert anchored.split()[:6] == ["serial", "156", "ms", "=", "12", "anchored"] and "0 of 6" in anchored
    first, _, last = as_json(rows())
    assert first["tasks"][0]["mean_seconds_of_successes"] == pytest.approx(200 / 80)
    assert last["tasks"][1]["mean_seconds_of_successes"] is None
    assert (last["successes"], last["episodes"], last["age_steps"]) == (2, 6, 12)
    assert last["interval_95"][0] < 2 / 6 < last["interval_95"][1]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ([], "give --ages FILE or --age MODE=MS"),
        (["--age", "serial"], "expected MODE=MS"),
        (["--ages", "no-such-file.json"], "no-such-file.json"),
        (["--age", "serial=156"], "benchmarks/metaworld/setup"),
    ],
)
def test_missing_requirements_are_reported_before_anything_runs(options, told, monkeypatch, capsys):
    monkeypatch.setattr(program, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "argv", ["metaworld", *options])
    with pytest.raises(SystemExit, match="2"):
        program.main()
    assert told in capsys.readouterr().err


@pytest.mark.skipif(not PYTHON.exists(), reason="needs the simulator's own environment: benchmarks/metaworld/setup")
def test_the_experts_act_on_old_states(tmp_path):
    out = tmp_path / "results.json"
    command = [PYTHON, "-m", "benchmarks.metaworld", "--age", "serial=100", "--task", "drawer-open", "--episodes", "2"]
    done = subprocess.run([*command, "--out", out], cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    fresh, _, anchored, ahead = json.loads(out.read_text())["conditions"]
    assert fresh["successes"] == ahead["successes"] == 2
    assert anchored["successes"] == 0
