"""Recordings are summarised, replayed to a real service and played through two models, as a user types it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from edgeflow.cli import app
from edgeflow.policies import registry
from tests.lab.recordings.recorded import RobotRecorder, local
from tests.policies.service_process import served
from tests.stub_policy import FOLDER, environment, stub_checkpoint

FRAMES, HORIZON = 6, 3


def checkpoint_in(folder: Path, **options: Any) -> Path:
    return stub_checkpoint(
        folder, cameras={"top": (8, 8)}, state={"position": 1}, actions=2, horizon=HORIZON, history=2, **options
    )


@pytest.fixture(scope="module")
def plugin() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        patch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
        registry.plugins.cache_clear()
        yield
    registry.plugins.cache_clear()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint_in(tmp_path_factory.mktemp("stub") / "stub")


@pytest.fixture(scope="module")
def recording(plugin, checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder: two sessions side by side with two epochs and a new instruction, then a third; frame 4 of session 2 has
    another answer than the policy's, by 0.5.
    """
    folder = tmp_path_factory.mktemp("recording")
    robots = RobotRecorder(folder)
    with local(checkpoint) as policy:
        for session in (1, 2):
            robots.open(session, policy)
        for seq in range(1, FRAMES + 1):
            epoch, instruction = (1, "go") if seq <= 3 else (2, "stop")
            for session in (1, 2):
                if seq == 4:
                    policy.reset(session)
                added = 0.5 if (session, seq) == (2, 4) else 0.0
                robots.frame(session, seq, policy, epoch=epoch, instruction=instruction, added=added)
        for session in (1, 2):
            robots.close(session, epoch=2)
        robots.wait(2_000_000_000)
        robots.open(3, policy)
        robots.frame(3, 7, policy)
        robots.frame(3, 8, policy)
    robots.stop()
    return folder


@pytest.fixture(scope="module")
def address(plugin, checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(tmp_path_factory.mktemp("service"), str(checkpoint)) as found:
        yield found


def run(command: str, *arguments: object) -> tuple[int, Any]:
    """The exit code and the JSON that a command prints; it raises the command's error."""
    found = CliRunner().invoke(
        app, ["recording", command, *map(str, arguments), "--json"], catch_exceptions=False, standalone_mode=True
    )
    return found.exit_code, json.loads(found.stdout)


def test_a_replay_gets_the_recorded_answers_and_finds_the_one_that_is_not(recording: Path, address: str):
    code, found = run("replay", recording, "--to", address, "--rate", "full")
    sessions = {each["session"]: each for each in found["sessions"]}
    assert [(each["sent"], each["compared"], each["bit_equal"]) for each in sessions.values()] == [
        (FRAMES, FRAMES, FRAMES),
        (FRAMES, FRAMES, FRAMES - 1),
        (2, 2, 2),
    ]
    first = sessions["2"]["first"]
    assert code == 1 and (first["seq"], first["difference"]) == (4, pytest.approx(0.5))
    assert sessions["2"]["dimensions"][0]["largest"] == pytest.approx(0.5)
    assert all(each["only_recorded"] == each["only_here"] == 0 for each in sessions.values())
    assert sessions["1"]["latency_recorded_ms"]["p50"] == 3.0 and sessions["1"]["latency_ms"]["p50"] > 0


def test_a_replay_keeps_the_recorded_rate_or_another(recording: Path, address: str):
    for rate, speed in (("recorded", 1.0), ("2", 2.0), ("0.5", 0.5)):
        code, found = run("replay", recording, "--to", address, "--rate", rate, "--session", 1)
        (session,) = found["sessions"]
        assert (code, session["equal"], session["frames"]) == (0, FRAMES, FRAMES)
        assert any("noise" in each for each in found["may_differ"]) is (speed < 1)
