"""The recorder of sessions writes what a robot sent and received to its ring, value for value."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edgeflow.service.observe.log import EventLog
from edgeflow.service.sessions.frames import NoticeEvent
from edgeflow.service.sessions.recording import SessionRecorder
from edgeflow_client.clock import ManualClock
from edgeflow_client.recording.records import (
    DECODER,
    AnySessionRecord,
    RecordedAnswer,
    RecordedClosing,
    RecordedHold,
    RecordedNotice,
    RecordedObservation,
    RecordedOpening,
    RecordedOutcome,
)
from edgeflow_client.recording.ring import RecordRing
from edgeflow_client.rpc import control_pb2 as pb
from edgeflow_client.types import Command, Disposition, ImageFormat
from tests.service.frontends.grpc.test_observations import ROWS, wide_script
from tests.service.frontends.robot_clients import SIDE, observation, openpi_robot, robots_address
from tests.service.frontends.stub_worker import stub_script
from tests.service.frontends.test_act import body, post
from tests.service.harness import HEIGHT, JPEG, WIDTH, eventually, frame_message, open_message, serving
from tests.stub_policy import stub_checkpoint

WRIST = pb.Camera(name="wrist", width=WIDTH, height=HEIGHT, format=pb.IMAGE_FORMAT_JPEG)
RAW = pb.Camera(name="raw", width=4, height=2, format=pb.IMAGE_FORMAT_RGB8)


@pytest.fixture
def ring() -> Iterator[RecordRing]:
    made = RecordRing.make(1 << 20)
    yield made
    made.close()


def recorder(ring: RecordRing, cameras: str = "all") -> SessionRecorder:
    log, times = EventLog(ManualClock(), io.StringIO()), itertools.count(1)
    return SessionRecorder(ring, model="demo", cameras=cameras, wall=lambda _: next(times), log=log)


def taken(ring: RecordRing, observer: SessionRecorder) -> list[tuple[AnySessionRecord, bytes]]:
    """All records, with the images of each."""
    observer.write()
    return [(DECODER.decode(each.head), bytes(each.payload)) for _ in range(2) for each in ring.look()]


async def test_a_stream_is_recorded_as_it_was(checkpoint, ring: RecordRing):
    async with serving(checkpoint, observers=[observer := recorder(ring)]) as served:
        robot = served.robot()
        opened = await robot.open(cameras=[WRIST, RAW], control_period_ms=50)
        raw = bytes(range(24))
        images = [pb.Image(data=JPEG), pb.Image(data=raw)]
        await robot.frame(1, images=images)
        first = await robot.action(1)
        await robot.frame(2, images=images, instruction="let go", resting=True, arrived=pb.Arrived(seq=1, age_ns=5))
        second = await robot.action(2)
        await robot.frame(2, images=images)  # again: rejected, and no observation
        await robot.until(lambda message: message.frame_status.reason == "SEQ_DUPLICATE")
        await robot.send(pb.ClientMessage(close=pb.Close()))
        await robot.rest()
        await eventually(lambda: not served.service.plane._runners)
    records = taken(ring, observer)
    assert [each.time_ns for each, _ in records] == list(range(1, len(records) + 1))
    assert {each.session for each, _ in records} == {opened.session}
    opening = records[0][0]
    assert isinstance(opening, RecordedOpening) and opening.instruction == "grasp the red handle"
    assert [(each.name, each.format) for each in opening.cameras] == [
        ("wrist", ImageFormat.JPEG),
        ("raw", ImageFormat.RGB8),
    ]
    assert opening.policy_cameras == ("wrist",) and opening.model == "demo" and opening.source == "service"
    assert opening.control_period_ns == 50_000_000 and opening.schema is not None
    assert list(opening.schema.names) == [each.name for each in opened.schema.dimensions]
    assert opening.served_mode is not None and opening.mode is None
    seen = [(each, images) for each, images in records if isinstance(each, RecordedObservation)]
    assert [(each.seq, each.epoch, each.instruction, each.stamp_ns, each.resting) for each, _ in seen] == [
        (1, 1, "grasp the red handle", 1_000_000, False),
        (2, 2, "let go", 2_000_000, True),
    ]
    assert all(images == JPEG + raw and each.image_bytes == (len(JPEG), len(raw)) for each, images in seen)
    assert seen[0][0].arrived is None and seen[1][0].arrived is not None and seen[1][0].arrived.seq == 1
    answers = [each for each, _ in records if isinstance(each, RecordedAnswer)]
    for answer, action in zip(answers, (first, second), strict=True):
        assert (answer.seq, answer.epoch, answer.stamp_ns) == (action.seq, action.epoch, action.stamp_ns)
        assert list(answer.values) == list(action.values) and answer.values
        assert (answer.server_ns, answer.max_age_ms) == (action.timings.server_ns, action.max_age_ms)
    outcomes = [(each.seq, each.disposition) for each, _ in records if isinstance(each, RecordedOutcome)]
    assert outcomes == [(2, Disposition.REJECTED)]
    assert [each.notice for each, _ in records if isinstance(each, RecordedNotice)] == ["epoch"]
    assert isinstance(records[-1][0], RecordedClosing) and records[-1][0].reason == "client_closed"


async def test_a_record_that_cannot_be_made_is_lost_and_costs_its_session_nothing(ring: RecordRing):
    observer = recorder(ring)
    observer.notified(1, NoticeEvent("drain", 1, text="\ud800"))
    observer.notified(1, NoticeEvent("drain", 1, text="now"))
    ((record, _),) = taken(ring, observer)
    assert isinstance(record, RecordedNotice) and record.text == "now" and ring.lost == 1


async def test_hold_is_recorded(checkpoint, ring: RecordRing):
    async with serving(checkpoint, observers=[observer := recorder(ring)], timing__silent_hold_ms=10) as served:
        robot = served.robot()
        await robot.open(control_period_ms=20)
        await robot.hold("INGRESS_SILENT")
    holds = [each for each, _ in taken(ring, observer) if isinstance(each, RecordedHold)]
    assert (holds[0].command, holds[0].reason) == (Command.HOLD, "INGRESS_SILENT")


async def test_without_cameras_no_image_is_copied_and_a_full_ring_costs_only_records(checkpoint, ring: RecordRing):
    tiny = RecordRing.make(0)
    observers = [recorder(ring, "none"), recorder(tiny)]
    async with serving(checkpoint, observers=observers) as served:
        robot = served.robot()
        await robot.open()
        for seq in range(1, 60):
            await robot.frame(seq)
            assert (await robot.action(seq)).values
    records = taken(ring, observers[0])
    observers[1].write()
    frames = [(each, images) for each, images in records if isinstance(each, RecordedObservation)]
    assert len(frames) == 59 and all(not images and not each.image_bytes for each, images in frames)
    numbers = [each.number for _ in range(2) for each in tiny.look()]
    assert 0 < tiny.lost == len(records) - len(numbers) and numbers == sorted(set(numbers))
    tiny.close()


async def test_single_observations_are_recorded_as_sessions_of_one_frame(checkpoint, ring: RecordRing):
    async with serving(checkpoint, observers=[observer := recorder(ring)]) as served:
        answer = await served.act(pb.ActRequest(open=open_message(), frame=frame_message(1)))
        await eventually(lambda: not served.service.plane._runners)
    (opening, _), (frame, images), (reply, _), *_ = taken(ring, observer)
    assert isinstance(opening, RecordedOpening) and isinstance(frame, RecordedObservation) and images == JPEG
    assert isinstance(reply, RecordedAnswer) and list(reply.values) == list(answer.action.values)


async def test_of_observations_decoded_elsewhere_the_pixels_are_recorded(checkpoint, ring: RecordRing):
    """POST /v1/act: the gateway decodes the cameras that the policy needs."""
    async with serving(checkpoint, wide_script(), observers=[observer := recorder(ring)]) as served:
        content = body()
        assert (await post(served, content)).status_code == 200
        (sent,) = served.script.worker.submitted()
    (opening, _), (frame, images), (reply, _), *_ = taken(ring, observer)
    assert isinstance(opening, RecordedOpening) and isinstance(frame, RecordedObservation)
    assert opening.policy_cameras == tuple(each.name for each in opening.cameras)
    assert {each.format for each in opening.cameras} == {ImageFormat.RGB8} and not opening.front
    assert frame.image_bytes == tuple(3 * each.width * each.height for each in opening.cameras)
    assert images == b"".join(bytes(each.data) for each in sent.images())
    assert frame.state == (1.25, -0.25) and frame.instruction == "go" == content["instruction"]
    assert isinstance(reply, RecordedAnswer) and reply.values == tuple(np.ravel(ROWS)) and reply.horizon == len(ROWS)


async def test_a_session_of_openpi_s_client_is_recorded(checkpoint, ring: RecordRing, tmp_path: Path):
    stub = stub_checkpoint(tmp_path / "stub", actions=2, horizon=3, cameras={"image": (SIDE, SIDE)}, state={"state": 2})
    async with serving(checkpoint, stub_script(stub), observers=[observer := recorder(ring)]) as served:
        async with openpi_robot(robots_address(served)) as robot:
            sent = observation(grey=7, **{"observation/state": np.array([0.5, -1.0], np.float32)})
            reply = await robot.ask(sent)
        await eventually(lambda: not served.service.plane._runners)
    (opening, _), (frame, images), (answer, _), *_, (closing, _) = taken(ring, observer)
    assert isinstance(opening, RecordedOpening) and opening.front == "openpi" and opening.chunks
    assert isinstance(frame, RecordedObservation) and frame.state == (0.5, -1.0) and frame.instruction == sent["prompt"]
    assert images == sent["observation/image"].tobytes() and frame.stamp_ns > 0
    assert isinstance(answer, RecordedAnswer) and isinstance(closing, RecordedClosing)
    assert np.array_equal(np.float32(answer.values).reshape(3, 2), reply["actions"])
