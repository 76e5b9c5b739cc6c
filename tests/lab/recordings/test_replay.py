"""Recordings are summarised, replayed to a real service and played through two models, as a user types it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import edgeflow
from edgeflow.cli import app
from edgeflow.in_process.policy import LocalPolicy
from edgeflow.policies import registry
from edgeflow_client.errors import ConfigError, EdgeflowError, FailedPrecondition, InvalidArgument
from edgeflow_client.robot import RobotClient
from edgeflow_client.types import CameraSpec, Execution, ImageFormat, Mode, StateSpec
from tests.lab.recordings.made_up import MadeUp
from tests.policies.service_process import served
from tests.service.front_process import wait_for
from tests.stub_policy import FOLDER, environment, stub_checkpoint

FRAMES, HORIZON, PERIOD_NS = 6, 3, 40_000_000
CAMERA = CameraSpec("top", 8, 8, ImageFormat.RGB8)
STATE = StateSpec(name="position", size=1)


def local(model: Path) -> LocalPolicy:
    """A policy that decodes as a session in mode serial does."""
    return edgeflow.load(model, mode="serial", device="cpu")


def contract(policy: LocalPolicy) -> dict[str, Any]:
    return {
        "model": "stub",
        "cameras": (CAMERA,),
        "state": (STATE,),
        "instruction": "go",
        "control_period_ns": PERIOD_NS,
        "max_action_age_ns": 5_000_000_000,
        "mode": Mode.SERIAL,
        "served_mode": Mode.SERIAL,
        "chunks": True,
        "schema": policy.schema,
    }


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
    """A folder: two sessions side by side with two epochs, the second with a new instruction in the second, then a
    third. Frame 4 of session 2 has another answer than the policy's, by 0.5.
    """
    made = MadeUp()
    with local(checkpoint) as policy:
        for session in (1, 2):
            made.of(session).opened(**contract(policy))
        for seq in range(1, FRAMES + 1):
            epoch = 1 if seq <= 3 else 2
            for session, text in ((1, "go"), (2, "go" if epoch == 1 else "stop")):
                if seq == 4:
                    policy.reset(session)
                added = 0.5 if (session, seq) == (2, 4) else 0.0
                made.of(session).answered(seq, policy, text=text, epoch=epoch, added=added)
        for session in (1, 2):
            made.of(session).closed()
        made.of(3).opened(**contract(policy))
        for seq in (12, 13):
            made.answered(seq, policy, text="go")
    return made.write(tmp_path_factory.mktemp("recording"))


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
        begun = time.monotonic()
        _, found = run("replay", recording, "--to", address, "--rate", rate, "--session", 1)
        (session,) = found["sessions"]
        assert time.monotonic() - begun > (FRAMES - 1) * PERIOD_NS / 1e9 / speed
        assert session["sent"] == session["compared"] + session["only_recorded"] == FRAMES
        assert any("noise" in each for each in found["may_differ"]) is (speed < 1)


def test_a_summary_names_what_is_there_and_what_is_not(recording: Path, tmp_path: Path):
    code, found = run("info", recording)
    (first, second, third) = found["sessions"]
    assert (code, found["lost"], found["damage"], found["models"]) == (0, {"sessions": 0, "passes": 0}, [], ["stub"])
    assert [each["answers"] for each in (first, second, third)] == [FRAMES, FRAMES, 2]
    assert [(each["epoch"], each["instruction"]) for each in second["epochs"]] == [(1, "go"), (2, "stop")]
    assert first["closed"]["reason"] == "client_closed" and third["closed"] is None
    assert first["contract"]["cameras"][0]["name"] == "top" and first["frames_with_images"] == FRAMES

    (file,) = recording.iterdir()
    broken = tmp_path / file.name
    broken.write_bytes(file.read_bytes()[: file.stat().st_size * 2 // 3])
    _, found = run("info", broken)
    (damage,) = found["damage"]
    assert damage["file"].endswith(file.name) and 0 < damage["offset"] <= broken.stat().st_size
    shown = CliRunner().invoke(app, ["recording", "info", str(broken)], catch_exceptions=False).stdout
    assert "is read up to" in shown and "another run" not in shown


def test_two_models_are_compared_frame_by_frame(plugin, recording: Path, checkpoint: Path, tmp_path: Path):
    plot = tmp_path / "plots" / "compared.png"
    other = checkpoint_in(tmp_path / "other", looks=False)
    _, found = run("compare", recording, "--model", checkpoint, "--model", other, "--device", "cpu", "--plot", plot)
    for session, frames, parted in zip(found["sessions"], (FRAMES, FRAMES, 2), (0, 1, 0), strict=True):
        mine, others = session["to_recorded"]
        assert (mine["compared"], mine["compared"] - mine["bit_equal"]) == (frames, parted)
        assert session["between"]["compared"] == frames and session["between"]["equal"] == 0
        assert others["first"]["seq"] == session["between"]["first"]["seq"]
        worst = session["between"]["worst"]
        largest = max(each["largest"] for each in session["between"]["dimensions"])
        assert worst[0]["difference"] == pytest.approx(largest)
        assert all(set(each) >= {"seq", "at_s", "row", "unit"} for each in worst)
    assert [each["answers"] for each in found["models"]] == [2 * FRAMES + 2] * 2
    assert plot.read_bytes().startswith(b"\x89PNG")
    _, found = run("compare", recording, "--model", checkpoint, "--model", checkpoint, "--every", 2, "--session", 1)
    assert found["sessions"][0]["between"]["bit_equal"] == FRAMES / 2


def test_models_that_do_not_fit_are_told_apart(plugin, recording: Path, checkpoint: Path, tmp_path: Path):
    named = stub_checkpoint(tmp_path / "wrist", cameras={"wrist": (8, 8)}, state={"position": 1}, actions=2)
    arms = stub_checkpoint(tmp_path / "arms", cameras={"top": (8, 8)}, state={"position": 1}, actions=("left", "right"))
    for other, error, said in (
        (named, InvalidArgument, r"does not fit session 1: .*no camera is the policy's 'wrist'.*sends 'top' 8x8"),
        (arms, FailedPrecondition, r"has the action 'a0', 'a1', .* 'left', 'right': they cannot be compared"),
    ):
        with pytest.raises(error, match=said):
            run("compare", recording, "--model", checkpoint, "--model", other)


def test_wrong_input_is_named(plugin, recording: Path, checkpoint: Path, tmp_path: Path):
    (tmp_path / "empty").mkdir()
    cases: list[tuple[type[EdgeflowError], str, list[object]]] = [
        (InvalidArgument, "does not exist", ["info", tmp_path / "none"]),
        (InvalidArgument, "has no recording", ["info", tmp_path / "empty"]),
        (ConfigError, "to: give --to HOST:PORT", ["replay", recording]),
        (ConfigError, "to: give --to HOST:PORT", ["replay", recording, "--exact", "--to", "h:1"]),
        (ConfigError, "session: is for --to; --exact", ["replay", recording, "--exact", "--session", 9]),
        (ConfigError, "model: is for --exact", ["replay", recording, "--to", "h:1", "--model", "demo"]),
        (FailedPrecondition, "passes", ["replay", recording, "--exact"]),
        (ConfigError, "rate: must be recorded, full or", ["replay", recording, "--to", "h:1", "--rate", "fast"]),
        (InvalidArgument, "session: 9 is not one of 1, 2, 3", ["replay", recording, "--to", "h:1", "--session", 9]),
        (ConfigError, "give --model twice, got 1", ["compare", recording, "--model", checkpoint]),
        (ConfigError, "not the name of a PNG", ["compare", recording, *["--model", "demo"] * 2, "--plot", "a.pdf"]),
    ]
    for error, said, (command, *arguments) in cases:
        with pytest.raises(error, match=said):
            run(str(command), *arguments)


def test_a_recording_without_images_cannot_be_replayed(plugin, checkpoint: Path, tmp_path: Path):
    with local(checkpoint) as policy:
        made = MadeUp().opened(**contract(policy)).answered(1, policy, text="go")
        made.frame(2, 80, image=bytes(1 << 20)).answered(3, policy, text="go")
    made.write(tmp_path / "thumbnails", cameras="thumbnails", lost=1)
    _, found = run("info", tmp_path / "thumbnails")
    assert found["lost"] == {"sessions": 1, "passes": 0}
    for arguments in (["replay", "--to", "h:1"], ["compare", *["--model", str(checkpoint)] * 2]):
        command, *rest = arguments
        with pytest.raises(FailedPrecondition, match="session 1 was recorded with thumbnails only"):
            run(command, tmp_path / "thumbnails", *rest)


def test_what_a_robot_recorded_itself_is_replayed(address: str, tmp_path: Path):
    settings = {"instruction": "go", "control_period_s": 0.02, "state": (STATE,), "execution": Execution.FRESH}
    with RobotClient(address, cameras=[CAMERA], record=str(tmp_path), **settings) as robot:
        for seq in range(1, 4):
            image = np.full((8, 8, 3), seq, np.uint8)
            robot.push({"top": image}, state={"position": [seq / 4]}, instruction="stop" if seq == 3 else "go")
            wait_for(lambda: not robot.statistics().in_flight)
    _, found = run("info", tmp_path)
    (session,) = found["sessions"]
    assert (session["session"], session["frames"]) == ("0", 3) and session["answers"] >= 1
    code, found = run("replay", tmp_path, "--to", address, "--rate", "full")
    (replayed,) = found["sessions"]
    assert (code, replayed["sent"], replayed["bit_equal"]) == (0, 3, session["answers"])
