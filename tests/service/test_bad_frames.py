"""The 24 kinds of bad frames over a real socket: each is told in band, and the next good frame is answered."""

from __future__ import annotations

import io
import math
import struct

import numpy as np
import pytest
from PIL import Image

from edgeflow.rpc import control_pb2 as pb
from tests.service.harness import HEIGHT, JPEG, WIDTH, frame_message, jpeg, open_message, serving

SEQ = 2  # of the bad frame; frame 1 was good
PROPRIO = [0.0, 1.0]


def wrapped(frame: pb.Frame) -> bytes:
    return pb.ClientMessage(frame=frame).SerializeToString()


def bad(data: bytes = JPEG, seq: int = SEQ, **changes) -> bytes:
    return wrapped(frame_message(seq, data, **{"proprio": PROPRIO, **changes}))


def with_size(width: int, height: int) -> bytes:
    """A JPEG whose header lies about its size."""
    position = JPEG.index(b"\xff\xc0") + 5
    return JPEG[:position] + struct.pack(">HH", height, width) + JPEG[position + 4 :]


def pillow(mode: str, file_format: str) -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, (WIDTH, HEIGHT)).save(buffer, file_format)
    return buffer.getvalue()


def twelve_bit() -> bytes:
    position = JPEG.index(b"\xff\xc0") + 4
    return JPEG[:position] + b"\x0c" + JPEG[position + 1 :]


def non_utf8() -> bytes:
    good = bad(instruction="AAAA")
    return good.replace(b"AAAA", b"\xff\xfe\xff\xfe")


def doubles() -> bytes:
    """proprio as 64-bit floats: another wire type under the same field number."""
    frame = frame_message(SEQ).SerializeToString() + b"".join(b"\x21" + struct.pack("<d", v) for v in PROPRIO)
    return b"\x12" + varint(len(frame)) + frame


def varint(value: int) -> bytes:
    low = b""
    while value > 127:
        low += bytes([value & 127 | 128])
        value >>= 7
    return low + bytes([value])


RANDOM = np.random.default_rng(0).bytes(500)
TWO_IMAGES = [pb.Image(data=JPEG), pb.Image(data=JPEG)]

KINDS = {
    "empty": (b"", 0, "INVALID_ARGUMENT", "MESSAGE_EMPTY"),
    "random bytes": (RANDOM, 0, "INVALID_ARGUMENT", "MESSAGE_UNPARSABLE"),
    "truncated message": (bad()[:-5], 0, "INVALID_ARGUMENT", "MESSAGE_UNPARSABLE"),
    "trailing bytes": (bad() + b"\xf8\x07\x01", SEQ, "INVALID_ARGUMENT", "UNKNOWN_FIELD"),
    "missing camera": (bad(images=[]), SEQ, "INVALID_ARGUMENT", "CAMERA_MISSING"),
    "extra camera": (bad(images=TWO_IMAGES), SEQ, "INVALID_ARGUMENT", "CAMERA_EXTRA"),
    "unknown camera": (bad(images=[pb.Image(camera="x", data=JPEG)]), SEQ, "INVALID_ARGUMENT", "CAMERA_MISSING"),
    "wrong size": (bad(jpeg(WIDTH * 2, HEIGHT)), SEQ, "INVALID_ARGUMENT", "IMAGE_WRONG_SIZE"),
    "zero size": (bad(with_size(0, 0)), SEQ, "INVALID_ARGUMENT", "IMAGE_WRONG_SIZE"),
    "bomb header": (bad(with_size(60000, 60000)), SEQ, "INVALID_ARGUMENT", "IMAGE_WRONG_SIZE"),
    "truncated JPEG": (bad(JPEG[:-200]), SEQ, "DATA_LOSS", "IMAGE_TRUNCATED"),
    "no image bytes": (bad(b""), SEQ, "INVALID_ARGUMENT", "IMAGE_EMPTY"),
    "image above the limit": (bad(JPEG + bytes(1 << 20)), SEQ, "INVALID_ARGUMENT", "IMAGE_TOO_LARGE"),
    "PNG where JPEG was agreed": (bad(pillow("RGB", "PNG")), SEQ, "INVALID_ARGUMENT", "IMAGE_WRONG_FORMAT"),
    "CMYK": (bad(pillow("CMYK", "JPEG")), SEQ, "INVALID_ARGUMENT", "IMAGE_WRONG_FORMAT"),
    "12 bits a sample": (bad(twelve_bit()), SEQ, "INVALID_ARGUMENT", "IMAGE_WRONG_FORMAT"),
    "checksum": (bad(crc32c=1), SEQ, "DATA_LOSS", "CRC_MISMATCH"),
    "NaN": (bad(proprio=[0.0, math.nan]), SEQ, "INVALID_ARGUMENT", "PROPRIO_NOT_FINITE"),
    "infinity": (bad(proprio=[math.inf, 0.0]), SEQ, "INVALID_ARGUMENT", "PROPRIO_NOT_FINITE"),
    "minus infinity": (bad(proprio=[-math.inf, 0.0]), SEQ, "INVALID_ARGUMENT", "PROPRIO_NOT_FINITE"),
    "1e38": (bad(proprio=[1e38, 0.0]), SEQ, "INVALID_ARGUMENT", "PROPRIO_OUT_OF_RANGE"),
    "wrong number of joints": (bad(proprio=[0.0] * 3), SEQ, "INVALID_ARGUMENT", "PROPRIO_COUNT"),
    "wrong number type": (doubles(), SEQ, "INVALID_ARGUMENT", "UNKNOWN_FIELD"),
    "text that is not UTF-8": (non_utf8(), 0, "INVALID_ARGUMENT", "MESSAGE_UNPARSABLE"),
    "1 MiB of text": (bad(instruction="a" * (1 << 20)), SEQ, "INVALID_ARGUMENT", "TEXT_TOO_LONG"),
    "empty text": (bad(instruction="  "), SEQ, "INVALID_ARGUMENT", "TEXT_EMPTY"),
    "control characters": (bad(instruction="a\x00b"), SEQ, "INVALID_ARGUMENT", "TEXT_BAD_CHARACTER"),
    "duplicate": (bad(seq=1), 1, "OUT_OF_RANGE", "SEQ_DUPLICATE"),
    "seq 0": (bad(seq=0, stamp_ns=9_000_000), 0, "OUT_OF_RANGE", "SEQ_OLD"),
    "gap": (bad(seq=1 << 60, stamp_ns=9_000_000), 1 << 60, "OUT_OF_RANGE", "SEQ_GAP"),
    "old stamp": (bad(stamp_ns=0), SEQ, "OUT_OF_RANGE", "STAMP_OLD"),
    "future stamp": (bad(stamp_ns=1 << 62), SEQ, "OUT_OF_RANGE", "STAMP_FUTURE"),
}


@pytest.fixture(params=KINDS, ids=lambda name: name.replace(" ", "-"))
def kind(request):
    return KINDS[request.param]


async def test_a_bad_frame_is_refused_and_the_next_good_one_answered(checkpoint, kind):
    message, seq, code, reason = kind
    async with serving(checkpoint) as served:
        robot = served.robot()
        await robot.open(proprio_names=["a", "b"])
        await robot.frame(1, proprio=PROPRIO)
        await robot.status(1)
        await robot.send(message)
        found = await robot.status(seq)
        assert (found.disposition, found.code, found.reason) == (pb.DISPOSITION_REJECTED, code, reason), found.text
        await robot.frame(3, proprio=PROPRIO)
        assert (await robot.action(3)).command == pb.COMMAND_ACT


async def test_a_second_open_is_refused_in_band(checkpoint):
    async with serving(checkpoint) as served:
        robot = served.robot()
        await robot.open()
        await robot.send(pb.ClientMessage(open=open_message()))
        assert (await robot.notice("rejected")).code == "ALREADY_EXISTS"
        await robot.frame(1)
        await robot.action(1)


async def test_a_frame_before_open_is_refused_in_band(checkpoint):
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


async def test_a_bad_reset_is_refused_in_band(checkpoint):
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
