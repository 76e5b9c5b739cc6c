"""A service that records: a file of its own process holds what robots sent and received, whatever ends meanwhile."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from edgeflow.cli import app
from edgeflow_client.recording.reader import Recording, runs
from edgeflow_client.recording.records import (
    AnySessionRecord,
    RecordedAnswer,
    RecordedClosing,
    RecordedObservation,
    RecordedOpening,
)
from edgeflow_client.rpc import control_pb2 as pb
from tests.service.harness import JPEG, WireRobot, eventually, serving
from tests.service.processes import command


def recorder() -> int:
    """The process id of the recorder, which a thread started."""
    born = [int(pid) for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()]
    (pid,) = (each for each in born if "recording.process" in command(each))
    return pid


async def drive(robot: WireRobot, first: int, last: int) -> list[pb.Action]:
    """The robot sends these frames, and gets an action for each."""
    actions = []
    for seq in range(first, last + 1):
        await robot.frame(seq)
        actions.append(await robot.action(seq))
    return actions


def recorded(folder: Path) -> list[tuple[AnySessionRecord, tuple[bytes, ...]]]:
    recording = Recording.open(folder)
    found = list(recording.sessions())
    assert not recording.damage
    return found


def answers(folder: Path) -> list[tuple[int, list[float]]]:
    return [(each.seq, list(each.values)) for each, _ in recorded(folder) if isinstance(each, RecordedAnswer)]


async def test_a_recording_holds_what_a_robot_sent_and_received(checkpoint, tmp_path: Path):
    folder = tmp_path / "new" / "recordings"
    async with serving(checkpoint, recording__directory=str(folder)) as served:
        assert f"to {folder}" in served.service.status.recording and "20 GiB" in served.service.status.recording
        robot = served.robot()
        await robot.open()
        actions = await drive(robot, 1, 5)
        (told,) = served.events("recording_session")
        assert told["session"] == 1 and told["about_mb_per_s"] > 0
        await eventually(lambda: bool(served.events("recording_file")))
    (path,) = folder.iterdir()
    assert path.stat().st_mode & 0o777 == 0o600 and folder.stat().st_mode & 0o777 == 0o700
    records = recorded(folder)
    assert isinstance(records[0][0], RecordedOpening) and isinstance(records[-1][0], RecordedClosing)
    frames = [(each, images) for each, images in records if isinstance(each, RecordedObservation)]
    assert [each.seq for each, _ in frames] == [1, 2, 3, 4, 5] and all(images == (JPEG,) for _, images in frames)
    assert answers(folder) == [(each.seq, list(each.values)) for each in actions]
    assert Recording.open(folder).facts["model"] == "demo"


async def test_a_recorder_that_is_killed_costs_robots_and_the_recording_nothing(checkpoint, tmp_path: Path):
    async with serving(checkpoint, recording__directory=str(tmp_path)) as served:
        robot = served.robot()
        await robot.open()
        actions = await drive(robot, 1, 3)
        await eventually(lambda: bool(served.events("recording_file")))
        os.kill(recorder(), signal.SIGKILL)
        actions += await drive(robot, 4, 6)
        await eventually(lambda: len(served.events("recording_file")) == 2)
        actions += await drive(robot, 7, 9)
        assert [each["level"] for each in served.events("recorder_restarted")] == ["warning"]
        assert served.metric("edgeflow_recorder_restarts_total") == 1
        assert served.metric("edgeflow_recording_files_total") == 2
    assert served.metric("edgeflow_recording_records_lost_total") == 0
    recording = Recording(runs(tmp_path)[0].files)
    seen = [each for each, _ in recording.sessions() if isinstance(each, RecordedAnswer)]
    assert [(each.seq, list(each.values)) for each in seen] == [(each.seq, list(each.values)) for each in actions]


async def test_robots_go_on_without_the_directory(checkpoint, tmp_path: Path):
    folder = tmp_path / "recordings"
    async with serving(checkpoint, recording__directory=str(folder)) as served:
        robot = served.robot()
        await robot.open()
        await eventually(lambda: bool(served.events("recording_file")))
        shutil.rmtree(folder)
        folder.write_text("in the way")
        sent = 0

        async def failed(condition: Callable[[], bool]) -> None:
            nonlocal sent
            while not condition():
                sent += 1
                await drive(robot, sent, sent)

        await failed(lambda: bool(served.events("recording_failing")))
        assert served.metric("edgeflow_recording_failing") == 1
        await drive(robot, sent + 1, sent + 5)


async def test_foxglove_can_watch_on_loopback(checkpoint):
    async with serving(checkpoint, recording__live_port=0) as served:
        await eventually(lambda: bool(served.events("recording_live")))
        (told,) = served.events("recording_live")
        assert told["address"].startswith("ws://127.0.0.1:")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--record", "{file}"], "recording.directory: {file} is not a directory: name another one"),
        (["--record", "{file}/below"], "recording.directory: {file} is not a directory: name another one"),
        (["--record", "/proc/none"], "recording.directory: "),
        (["--record", "x", "--record-cameras", "some"], "recording.cameras: "),
        (["--record", ""], "record: is empty: name a directory"),
        (["--record-cameras", "none"], "record-cameras: nothing is recorded: give --record DIR or --live"),
        (["--live", "--set", "recording.live_port=70000"], "recording.live_port: 70000 should be"),
    ],
)
def test_what_cannot_be_recorded_is_told_before_the_start(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], arguments: list[str], told: str
):
    file = tmp_path / "file"
    file.write_text("")
    found = CliRunner().invoke(app, ["serve", *(each.format(file=file) for each in arguments)])
    assert found.exit_code == 2 and told.format(file=file) in capfd.readouterr().err


def test_without_the_extra_it_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    monkeypatch.setitem(sys.modules, "foxglove", None)
    found = CliRunner().invoke(app, ["serve", "--model", "some/model", "--record", str(tmp_path)])
    assert found.exit_code == 2 and "foxglove-sdk is not installed; in a clone" in capfd.readouterr().err


def test_a_port_in_use_is_told_before_the_start(capfd: pytest.CaptureFixture[str]):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        found = CliRunner().invoke(app, ["serve", "--set", f"recording.live_port={where.rpartition(':')[2]}"])
    assert found.exit_code == 2 and f"recording.live_port: {where} is in use" in capfd.readouterr().err
