"""The 24 kinds of bad frames over a real socket: each is told in band, and the next good frame is answered."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from functools import partial
from random import Random

import grpc
import pytest

from edgeflow.ipc.messages import SubmitFrame
from edgeflow.service.frontends.grpc.server import SERVICE
from edgeflow_client.rpc import control_pb2 as pb
from tests.fuzz import wire
from tests.fuzz.exchange import FIRST, PICTURES, clean_run, problem, run_kind
from tests.fuzz.kinds import KINDS, good_frame
from tests.fuzz.memory import resident_bytes
from tests.fuzz.pictures import bomb, picture
from tests.service.harness import JPEG, RunningService, WireRobot, open_message, serving
from tests.service.scripted import Script

LIMIT = 4 << 20
TIMES = 20


def seen_values(frame: SubmitFrame) -> list[float]:
    """An action that depends on every pixel and letter that reached the worker."""
    digest = hashlib.sha256(bytes(frame.payload) + frame.instruction.encode()).digest()
    return [digest[0] / 255, digest[1] / 255, digest[2] / 255]


@pytest.mark.parametrize("name", KINDS)
async def test_bad_frames_are_rejected_in_band_and_good_ones_between_are_acted_as_ever(checkpoint, caplog, capfd, name):
    async with serving(checkpoint, Script(values=seen_values)) as served:
        clean = await clean_run(served.robot)
        report = await run_kind(served.robot, name, TIMES, seed=0, clean=clean)
        assert (report.problems, report.sent) == ([], TIMES)
        assert len(set(clean.values())) == PICTURES
        assert served.metric("edgeflow_frames_total", disposition="acted", reason="") == PICTURES + TIMES + FIRST
        for code in ("UNKNOWN", "INTERNAL"):
            assert served.metric("edgeflow_rpc_total", method="Stream", code=code) == 0
    assert "Traceback" not in served.log + caplog.text + "".join(capfd.readouterr())


@pytest.mark.parametrize("change", ["code", "reason", "text", "seq"])
def test_a_wrong_answer_would_be_seen(change):
    data = KINDS["1e38"].spoil(good_frame(2, 1), Random(0))
    status = pb.FrameStatus(seq=2, code="INVALID_ARGUMENT", reason="PROPRIO_OUT_OF_RANGE")
    status.text = "frame.proprio[0]: must be finite and at most 1e+06 in magnitude"
    assert problem(KINDS["1e38"], data, pb.ServerMessage(frame_status=status)) == ""
    wrong = {"code": "INTERNAL", "reason": "", "text": "frame.proprio[0]: no", "seq": 1}[change]
    setattr(status, change, wrong)
    assert problem(KINDS["1e38"], data, pb.ServerMessage(frame_status=status))


async def test_more_than_a_hundred_rejections_in_ten_seconds_end_the_stream(checkpoint):
    async with serving(checkpoint) as served:
        robot = served.robot()
        await robot.open()
        for _ in range(100):
            await robot.send(b"\xff")
        await robot.frame(1)
        await robot.action(1)
        await robot.send(b"\xff")
        await robot.hold("TOO_MANY_REJECTED")
        code, text = await robot.rest()
        assert (code, text) == (grpc.StatusCode.ABORTED, "more than 100 rejected frames in 10 s")


async def test_a_message_is_as_large_as_the_limit_and_no_larger(checkpoint):
    async with serving(checkpoint) as served:
        robot = served.robot()
        await robot.open()
        await robot.send(padded(LIMIT))
        assert (await robot.status(0)).reason == "UNKNOWN_FIELD"
        await robot.frame(1)
        await robot.action(1)
        with contextlib.suppress(grpc.aio.AioRpcError):
            await robot.send(padded(LIMIT + 1))
        code, _ = await robot.rest()
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_bombs_leave_no_memory(checkpoint):
    rng = Random(0)
    async with serving(checkpoint) as served:
        await bombs(served, rng, 10)
        before = resident_bytes()
        await bombs(served, rng, 50)
        assert resident_bytes() - before < 8 << 20


async def test_oversized_messages_leave_no_memory(checkpoint):
    """A small limit makes it quick; all of them kept would be far more than the growth that is allowed."""
    limit = 1 << 18
    async with serving(checkpoint, limits__message_bytes=limit) as served:
        await oversized(served, limit, 4)
        before = resident_bytes()
        await oversized(served, limit, 12)
        assert resident_bytes() - before < 22 << 20


async def test_a_message_of_millions_of_parts_is_rejected_at_once(checkpoint):
    images = wire.sized(2, b"\x08\x01" + b"\x1a\x00" * 2_000_000)
    unknown = wire.sized(2, b"\x08\x02" + b"\xf8\x07\x01" * 1_300_000)
    async with serving(checkpoint) as served:
        robot = served.robot()
        await robot.open()
        for seq, message, reason in ((1, images, "PARTS"), (2, unknown, "UNKNOWN_FIELD")):
            await robot.send(message)
            assert (await robot.status(seq)).reason == reason
        await robot.frame(3)
        await robot.action(3)


async def test_a_compressed_message_is_rejected(checkpoint):
    async with serving(checkpoint) as served:
        stream = served.channel.stream_stream(f"/{SERVICE}/Stream", bytes, pb.ServerMessage.FromString)
        robot = WireRobot(partial(stream, compression=grpc.Compression.Gzip))
        with contextlib.suppress(grpc.aio.AioRpcError):
            await robot.send(pb.ClientMessage(open=open_message(instruction="a" * 4000)))
        code, _ = await robot.rest()
        assert code in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.INTERNAL)  # as the library's version has it
        assert not served.events("session_opened")


SIDES = (1, 2, 3, 7, 8, 9, 63, 64, 65, 223, 225, 4097)


@pytest.mark.parametrize("width", SIDES)
async def test_odd_sizes_are_served_or_rejected_at_open(checkpoint, width):
    heights = [height for height in (1, 8, 65, width, 4097) if width * height <= 4_000_000]
    images = {height: picture(width, height) for height in heights}  # takes long: the service's loop would stand still
    async with serving(checkpoint) as served:
        for height, image in images.items():
            robot = served.robot()
            await robot.open(cameras=[odd_camera(width, height)])
            await robot.frame(1, image)
            assert (await robot.action(1)).command == pb.COMMAND_ACT
            await robot.send(pb.ClientMessage(close=pb.Close()))
            await robot.rest()


async def test_a_camera_of_too_many_pixels_is_rejected_at_open(checkpoint):
    async with serving(checkpoint) as served:
        robot = served.robot()
        await robot.send(pb.ClientMessage(open=open_message(cameras=[odd_camera(4097, 4097)])))
        code, text = await robot.rest()
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert text == "open.cameras[0]: 4097x4097 is outside the limits of 1 to 4000000 pixels"


def odd_camera(width: int, height: int) -> pb.Camera:
    return pb.Camera(name="a", width=width, height=height, format=pb.IMAGE_FORMAT_JPEG)


def padded(size: int) -> bytes:
    """A message without content, of so many bytes."""
    head = len(wire.sized(100, b"")) - 1 + len(wire.varint(size - 8))
    message = wire.sized(100, bytes(size - head))
    assert len(message) == size
    return message


async def bombs(served: RunningService, rng: Random, count: int) -> None:
    robot = served.robot()
    await robot.open()
    for seq in range(1, count + 1):
        await robot.frame(seq, bomb(JPEG, rng))
        assert (await robot.status(seq)).code == "INVALID_ARGUMENT"
    await robot.send(pb.ClientMessage(close=pb.Close()))
    await robot.rest()


async def oversized(served: RunningService, limit: int, rounds: int) -> None:
    """Fifteen streams a round, each ended by one message."""
    message = padded(limit + 1)

    async def one() -> None:
        robot = served.robot()
        with contextlib.suppress(grpc.aio.AioRpcError):
            await robot.send(message)
        code, _ = await robot.rest()
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED

    for _ in range(rounds):
        await asyncio.gather(*[one() for _ in range(15)])


async def test_a_second_open_is_rejected_in_band(checkpoint):
    async with serving(checkpoint) as served:
        robot = served.robot()
        await robot.open()
        await robot.send(pb.ClientMessage(open=open_message()))
        assert (await robot.notice("rejected")).code == "ALREADY_EXISTS"
        await robot.frame(1)
        await robot.action(1)


async def test_a_frame_before_open_is_rejected_in_band(checkpoint):
    async with serving(checkpoint) as served:
        robot = served.robot()
        await robot.frame(5)
        status = await robot.status(5)
        assert (status.code, status.reason) == ("FAILED_PRECONDITION", "NOT_OPEN")
        await robot.send(b"\xff")
        assert (await robot.status(0)).reason == "MESSAGE_UNPARSABLE"
        await robot.open()
        await robot.frame(1)
        await robot.action(1)


async def test_a_bad_reset_is_rejected_in_band(checkpoint):
    async with serving(checkpoint) as served:
        robot = served.robot()
        await robot.open()
        await robot.send(pb.ClientMessage(reset=pb.Reset(instruction="a\x07")))
        assert (await robot.notice("rejected")).code == "INVALID_ARGUMENT"


RGB_TOO_LARGE = pb.Camera(name="a", width=1000, height=1000, format=pb.IMAGE_FORMAT_RGB8)
TWICE = [pb.Camera(name="a", width=8, height=8, format=pb.IMAGE_FORMAT_JPEG)] * 2
OPENS = {
    "open.model": ({"model": "other"}, "NOT_FOUND"),
    "open.instruction": ({"instruction": ""}, "INVALID_ARGUMENT"),
    "open.cameras": ({"cameras": []}, "INVALID_ARGUMENT"),
    "open.cameras[0].format": ({"cameras": [pb.Camera(name="a", width=8, height=8)]}, "INVALID_ARGUMENT"),
    "open.cameras[0].name": ({"cameras": [pb.Camera(width=8, height=8)]}, "INVALID_ARGUMENT"),
    "open.cameras[0]": ({"cameras": [RGB_TOO_LARGE]}, "INVALID_ARGUMENT"),
    "open.cameras: two cameras": ({"cameras": TWICE}, "INVALID_ARGUMENT"),
    "open.control_period_ms": ({"control_period_ms": 0}, "INVALID_ARGUMENT"),
    "open.max_action_age_ms": ({"max_action_age_ms": 1 << 30}, "INVALID_ARGUMENT"),
    "open.mode": ({"mode": 9}, "INVALID_ARGUMENT"),
    "open.proprio_names": ({"proprio_names": ["a"] * 257}, "INVALID_ARGUMENT"),
    "open.proprio_names[0]": ({"proprio_names": [""]}, "INVALID_ARGUMENT"),
    "open.unnorm_key": ({"unnorm_key": "k" * 65}, "INVALID_ARGUMENT"),
}


@pytest.mark.parametrize("field", OPENS)
async def test_a_bad_open_ends_the_stream_naming_the_field(checkpoint, field):
    changes, code = OPENS[field]
    async with serving(checkpoint) as served:
        robot = served.robot()
        await robot.send(pb.ClientMessage(open=open_message(**changes)))
        found, text = await robot.rest()
        assert found.name == code and text.startswith(field)
