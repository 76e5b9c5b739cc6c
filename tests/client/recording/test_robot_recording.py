"""A robot's own recording agrees with what it pushed, what the service sent, and what it read."""

from __future__ import annotations

import logging
import multiprocessing
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import grpc
import numpy as np
import pytest

from edgeflow_client import __version__
from edgeflow_client.connection.recording import RobotRecording
from edgeflow_client.connection.wire import opened_of
from edgeflow_client.errors import ConfigError, DependencyError, InvalidArgument
from edgeflow_client.pose import Pose
from edgeflow_client.recording.reader import Recording
from edgeflow_client.recording.records import (
    AnySessionRecord,
    RecordedAnswer,
    RecordedClosing,
    RecordedExecution,
    RecordedHold,
    RecordedNotice,
    RecordedObservation,
    RecordedOpening,
    RecordedOutcome,
)
from edgeflow_client.rpc import control_pb2 as pb
from edgeflow_client.types import CameraSpec, Command, Disposition, ImageFormat, StateSpec
from tests.client.scripted import VALUES, Refuse, Server, Talk, answer_all, opened, session_settings

ROOT = Path(__file__).parents[3]
CAMERAS = (
    CameraSpec("wrist", 8, 6, ImageFormat.RGB8),
    CameraSpec("top", 32, 24, ImageFormat.RGB8, send=ImageFormat.JPEG, resize=True),
    CameraSpec("side", 8, 6, ImageFormat.JPEG),
)
STATE = (StateSpec(name="joints", size=3, elements=("a", "b", "c")),)
POSE = Pose([0.4, 0.1, 0.3], wxyz=[1.0, 0.0, 0.0, 0.0])
NOBODY = SimpleNamespace(address="127.0.0.1:1")
Read = tuple[AnySessionRecord, tuple[bytes, ...]]


def read(directory: Path) -> list[Read]:
    """All records of the only run in a directory, from files without damage."""
    recording = Recording.open(directory)
    found = list(recording.sessions())
    assert not recording.damage
    assert recording.facts["source"] == "robot" and recording.facts["edgeflow"] == __version__
    times = [record.time_ns for record, _ in found]
    assert times == sorted(set(times))
    return found


def of(kind: type, found: list[Read]) -> list:
    return [record for record, _ in found if type(record) is kind]


def frames_heard(server: Server) -> Iterator[pb.Frame]:
    while not server.heard.empty():
        message = server.heard.get()
        if message.HasField("frame"):
            yield message.frame


def a_day(talk: Talk) -> None:
    """Answers a frame, falls silent, rejects a frame and answers the one after a reset; ends, and answers again."""
    talk.hear()
    answer = opened(300, control_rate_hz=10.0)
    answer.cameras.append(pb.Camera(name="top", width=16, height=12))
    talk.valid_for_ms = 300
    talk.say(opened=answer)
    frames = talk.frames()
    talk.act(next(frames), token_ids=[7, 8], timings=pb.Timings(queue_ns=5, server_ns=9, passes=2))
    if talk.number == 1:
        talk.status(next(frames), pb.DISPOSITION_REJECTED, code="INVALID_ARGUMENT", reason="PARTS", text="no")
        assert talk.hear().HasField("reset")
        talk.epoch = 2
        talk.say(notice=pb.Notice(kind="epoch", epoch=2))
        talk.act(next(frames))
        next(frames)
        raise Refuse(grpc.StatusCode.UNAVAILABLE, "over", edgeflow_reason="DRAINING")
    talk.stall()


def test_a_recording_holds_what_was_sent_received_and_executed(serve, connect, eventually, tmp_path):
    server, pushed, executed = serve(a_day), [], []
    robot = connect(server, cameras=CAMERAS, state=STATE, record=tmp_path / "new" / "robot", max_action_age_s=5.0)

    def push() -> None:
        number = len(pushed) + 1
        images = {
            "wrist": np.full((6, 8, 3), number, np.uint8),
            "top": np.full((24, 32, 3), 10 * number, np.uint8),
            "side": bytes([number]) * 50,
        }
        client.push(images, POSE, state={"joints": [number, 0.5, 0.1]})
        pushed.append(images)

    def acts() -> bool:
        directive = client.latest()
        if directive.action is not None:
            executed.append((directive.action.seq, directive.tool))
        return directive.action is not None

    with robot as client:
        push()
        eventually(acts)
        eventually(lambda: client.latest().reason == "SILENCE")
        push()
        eventually(lambda: client.statistics().rejected == 1)
        client.reset("place it")
        push()
        eventually(acts)
        push()
        eventually(lambda: client.latest().reason == "DISCONNECTED")
        push()  # without a stream
        eventually(lambda: client.opened.session and server.streams == 2 and client.statistics().reconnects)
        client.reset("and again")
        push()
        eventually(acts)

    found = read(tmp_path / "new" / "robot")
    first, second = of(RecordedOpening, found)
    assert first.source == "robot"
    assert first.peer == server.address
    assert [(camera.name, camera.width, camera.height, camera.format.value) for camera in first.cameras] == [
        ("wrist", 8, 6, "rgb8"),
        ("top", 16, 12, "jpeg"),
        ("side", 8, 6, "jpeg"),
    ]
    assert first.state == STATE
    assert first.schema == opened_of(opened(control_rate_hz=10.0)).schema
    assert (first.control_period_ns, first.max_action_age_ns) == (20_000_000, 5_000_000_000)
    assert (first.instruction, second.instruction) == ("grasp", "place it")

    observations = [(record, images) for record, images in found if isinstance(record, RecordedObservation)]
    assert [(record.seq, record.epoch, record.instruction) for record, _ in observations] == [
        (1, 1, "grasp"),
        (2, 1, "grasp"),
        (3, 2, "place it"),
        (4, 2, "place it"),
        (5, 2, "place it"),
        (6, 2, "and again"),  # the new stream counts from 1 again
    ]
    sent = [(record, images) for record, images in observations if record.seq != 5]
    heard = list(frames_heard(server))
    assert [images for _, images in sent] == [tuple(image.data for image in frame.images) for frame in heard]
    assert [record.stamp_ns for record, _ in sent] == [frame.stamp_ns for frame in heard]
    assert [record.state for record, _ in sent] == [tuple(frame.proprio) for frame in heard]
    assert sent[0][1][0] == pushed[0]["wrist"].tobytes()
    assert observations[4][1] == ()
    assert {record.pose for record, _ in observations} == {(0.4, 0.1, 0.3, 1.0, 0.0, 0.0, 0.0)}

    answers = of(RecordedAnswer, found)
    assert [(answer.seq, answer.epoch, answer.values) for answer in answers] == [
        (1, 1, tuple(VALUES)),
        (3, 2, tuple(VALUES)),
        (6, 1, tuple(VALUES)),
    ]
    assert (answers[0].token_ids, answers[0].queue_ns, answers[0].server_ns, answers[0].passes) == ((7, 8), 5, 9, 2)
    assert all(0 < answer.age_ns < 60e9 for answer in answers)

    executions = of(RecordedExecution, found)
    assert [(each.seq, each.row, each.values) for each in executions] == [(seq, 0, tuple(VALUES)) for seq in (1, 3, 6)]
    assert [(each.seq, each.pose) for each in executions] == [
        (seq, (*tool.pose.position, *tool.pose.wxyz)) for seq, tool in executed
    ]
    assert all(each.age_ns >= answer.age_ns for each, answer in zip(executions, answers, strict=True))

    holds = [(hold.command, hold.reason) for hold in of(RecordedHold, found)]
    assert holds[0] == (Command.HOLD, "SILENCE")
    assert [reason for _, reason in holds if reason != "SILENCE"] == ["RESET", "DISCONNECTED", "RESET", "CLOSED"]

    outcomes = {outcome.seq: (outcome.disposition, outcome.reason) for outcome in of(RecordedOutcome, found)}
    assert len(of(RecordedOutcome, found)) == len(outcomes)
    assert outcomes == {
        2: (Disposition.REJECTED, "PARTS"),
        4: (Disposition.DROPPED, "DRAINING"),
        5: (Disposition.DROPPED, "DISCONNECTED"),
    }
    notices = [(notice.notice, notice.code) for notice in of(RecordedNotice, found)]
    assert notices[:2] == [("epoch", ""), ("stream_ended", "UNAVAILABLE")]
    assert type(found[-1][0]) is RecordedClosing
    assert found[-1][0].reason == "CLOSED"


def test_frames_that_are_never_sent_have_no_images(serve, connect, eventually, tmp_path):
    def deaf(talk: Talk) -> None:
        talk.open()
        talk.stall()

    picture = np.zeros((480, 640, 3), np.uint8)
    with connect(
        serve(deaf), cameras=[CameraSpec("wrist", 640, 480, ImageFormat.RGB8)], record=str(tmp_path)
    ) as client:
        for _ in range(60):
            client.push(picture)
    found = read(tmp_path)
    observations = {record.seq: images for record, images in found if isinstance(record, RecordedObservation)}
    outcomes = of(RecordedOutcome, found)
    superseded = {outcome.seq for outcome in outcomes if outcome.disposition is Disposition.SUPERSEDED}
    assert sorted(observations) == sorted(outcome.seq for outcome in outcomes) == list(range(1, 61))
    assert len(superseded) > 20
    assert {seq for seq, images in observations.items() if not images} >= superseded
    assert {images for images in observations.values() if images} == {(picture.tobytes(),)}
    (path,) = tmp_path.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


ROBOT = """
import sys
import numpy as np
from edgeflow_client import CameraSpec, ImageFormat, RateKeeper, RobotClient

camera, rate = CameraSpec("wrist", 8, 6, ImageFormat.RGB8), RateKeeper(0.01)
with RobotClient(
    sys.argv[1], cameras=[camera], instruction="grasp", control_period_s=0.01, record=sys.argv[2]
) as client:
    while True:
        print(client.push(np.zeros((6, 8, 3), np.uint8)), flush=True)
        rate.wait()
"""


def test_a_killed_robot_leaves_its_recording(serve, eventually, tmp_path):
    server = serve(answer_all)
    robot = subprocess.Popen(
        [sys.executable, "-c", ROBOT, server.address, str(tmp_path)], stdout=subprocess.PIPE, cwd=ROOT
    )
    with robot:
        for line in robot.stdout:
            last = int(line)
            if last == 100:
                robot.kill()
    eventually(lambda: not _damage(tmp_path))  # its recorder has closed the file
    numbers = sorted(record.seq for record in of(RecordedObservation, read(tmp_path)))
    assert numbers == list(range(1, len(numbers) + 1))
    assert last - len(numbers) <= 2  # one was about to be sent, one waited


def _damage(directory: Path) -> list:
    recording = Recording.open(directory)
    list(recording.sessions())
    return recording.damage


@pytest.fixture
def recording(tmp_path) -> RobotRecording:
    """A recording of a robot without a service."""
    recording = RobotRecording(tmp_path, "127.0.0.1:1")
    recording.start()
    return recording


def _misuse(recording: RobotRecording) -> None:
    recording.opened(session_settings(), "of a child", opened_of(opened()))
    recording.stop(None)


def test_a_forked_process_writes_nothing_and_stops_nothing(recording, tmp_path):
    recording.opened(session_settings(), "before", opened_of(opened()))
    child = multiprocessing.get_context("fork").Process(target=_misuse, args=(recording,))
    child.start()
    child.join()
    assert child.exitcode == 0
    recording.opened(session_settings(), "after", opened_of(opened()))
    recording.stop(None)
    assert [opening.instruction for opening in of(RecordedOpening, read(tmp_path))] == ["before", "after"]


def test_answers_that_are_not_finite_are_recorded_without_their_values(recording, tmp_path):
    recording.opened(session_settings(), "grasp", opened_of(opened()))
    action = pb.Action(seq=1, command=pb.COMMAND_ACT, values=[float("nan")] * 7, step_ms=float("inf"))
    action.limited.add(dimension="x", limit="velocity", beyond=float("inf"))
    recording.heard(pb.ServerMessage(action=action), 0, 5)
    recording.stop(None)
    (answer,) = of(RecordedAnswer, read(tmp_path))
    assert (answer.values, answer.step_ms, answer.report.limited) == ((), 0.0, ())


def test_a_failure_of_the_recording_is_logged_once_and_goes_no_further(recording, caplog):
    with caplog.at_level(logging.ERROR, logger="edgeflow_client"):
        for _ in range(3):
            recording.opened(session_settings(), "grasp", "no answer of a service")
    assert len(caplog.records) == 1
    recording.stop(None)


def test_what_cannot_be_recorded_is_said_at_construction(connect, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="file"):
        connect(NOBODY, record=tmp_path / "file")
    for wrong in (True, ""):
        with pytest.raises(InvalidArgument, match="record: must be the path"):
            connect(NOBODY, record=wrong)
    monkeypatch.setitem(sys.modules, "edgeflow_client.connection.recording", None)
    with pytest.raises(DependencyError, match="extra `record`"):
        connect(NOBODY, record=tmp_path)
