"""The 24 kinds of bad frames: how to spoil a good one, and what the service must answer.

A generator gets a good frame and a seeded random source and gives the bytes to send as one message. The session it
is sent in has two cameras and two joints (`OPEN`), has had frame `seq - 1`, and `good` would be the next.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from google.protobuf.message import DecodeError

from edgeflow_client.connection.unknown import FIRST_IGNORABLE
from edgeflow_client.rpc import control_pb2 as pb
from tests.fuzz import pictures, wire

WIDTH, HEIGHT = 32, 24
JOINTS = ("shoulder", "elbow")
PERIOD_MS = 50
CAMERAS = ("wrist", "scene")
FRAME_OF_CLIENT_MESSAGE, IMAGES, DATA, PROPRIO, INSTRUCTION = 2, 3, 2, 4, 5
BROKEN_TEXT = [b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"a\x80", b"\xe2\x82"]
Spoil = Callable[[pb.Frame, Random], bytes]

OPEN = pb.Open(
    cameras=[pb.Camera(name=name, width=WIDTH, height=HEIGHT, format=pb.IMAGE_FORMAT_JPEG) for name in CAMERAS],
    proprio_names=list(JOINTS),
    instruction="grasp the red handle",
    control_period_ms=PERIOD_MS,
    max_action_age_ms=60_000,
)


@dataclass(frozen=True, slots=True)
class BadInput:
    """A spoilt input and the status that must answer it."""

    spoil: Spoil
    reasons: set[str]
    field: str
    words: tuple[str, ...] = ()
    """The text must have all of them, the limit among them."""
    code: str = "INVALID_ARGUMENT"
    """`code`, `reasons`, `field`: of the status."""
    notice: bool = False
    """The status comes as a note, since the message does not hold a frame."""


def good_frame(seq: int, stamp_ns: int, picture: int = 0) -> pb.Frame:
    """One that is acted on. picture: which of the images; the second camera shows the next one."""
    images = [pb.Image(data=pictures.picture(WIDTH, HEIGHT, picture + i)) for i in range(len(CAMERAS))]
    return pb.Frame(seq=seq, stamp_ns=stamp_ns, images=images, proprio=[0.25, -0.5])


def message(frame: pb.Frame, **changes: object) -> bytes:
    """The frame as a message, some fields replaced."""
    changed = pb.Frame()
    changed.CopyFrom(frame)
    for name in changes:
        changed.ClearField(name)
    changed.MergeFrom(pb.Frame(**changes))
    return pb.ClientMessage(frame=changed).SerializeToString()


def raw(frame: pb.Frame, behind: bytes, without: str = "") -> bytes:
    """The frame with hand-written fields behind its own."""
    kept = pb.Frame()
    kept.CopyFrom(frame)
    if without:
        kept.ClearField(without)
    return wire.sized(FRAME_OF_CLIENT_MESSAGE, kept.SerializeToString() + behind)


def _with_image(change: Callable[[bytes, Random], bytes]) -> Spoil:
    """Any one of the images is spoilt."""

    def spoil(frame: pb.Frame, rng: Random) -> bytes:
        images = [pb.Image(camera=image.camera, data=image.data) for image in frame.images]
        victim = rng.choice(images)
        victim.data = change(victim.data, rng)
        return message(frame, images=images)

    return spoil


def _with_joint(value: Callable[[Random], float]) -> Spoil:
    def spoil(frame: pb.Frame, rng: Random) -> bytes:
        values = list(frame.proprio)
        values[rng.randrange(len(values))] = value(rng)
        return message(frame, proprio=values)

    return spoil


def _random_bytes(_: pb.Frame, rng: Random) -> bytes:
    """Vary the bytes until they do not form a message: one in some thousands does."""
    while True:
        data = rng.randbytes(rng.randrange(1, 2000))
        try:
            pb.ClientMessage.FromString(data)
        except DecodeError:
            return data


def _truncated(frame: pb.Frame, rng: Random) -> bytes:
    whole = message(frame)
    return whole[: rng.randrange(1, len(whole))]


def _trailing(frame: pb.Frame, rng: Random) -> bytes:
    unknown = wire.number(rng.randrange(16, FIRST_IGNORABLE), rng.getrandbits(32))
    where = rng.randrange(3)
    if where == 0:
        return message(frame) + unknown
    if where == 1:
        return raw(frame, unknown)
    return message(frame) + b"\x00" + rng.randbytes(rng.randrange(9))  # field number 0 is none


def _fewer_images(frame: pb.Frame, rng: Random) -> bytes:
    if rng.random() < 0.5:
        return message(frame, images=list(frame.images)[: rng.randrange(len(CAMERAS))])
    named = [pb.Image(camera=name, data=image.data) for name, image in zip(CAMERAS, frame.images, strict=True)]
    named[rng.randrange(len(named))].camera = rng.choice(["left", "Wrist", "wrist "])
    return message(frame, images=named)


def _more_images(frame: pb.Frame, rng: Random) -> bytes:
    return message(frame, images=[*frame.images, *[frame.images[0]] * rng.randrange(1, 40)])


def _other_size(_: bytes, rng: Random) -> bytes:
    sizes = [(WIDTH + 1, HEIGHT), (HEIGHT, WIDTH), (WIDTH * 2, HEIGHT * 2), (1, 1), (WIDTH, HEIGHT - 1), (640, 480)]
    return pictures.picture(*rng.choice(sizes))


def _no_size(data: bytes, rng: Random) -> bytes:
    return pictures.declaring(data, *rng.choice([(0, 0), (0, HEIGHT), (WIDTH, 0)]))


def _other_coding(data: bytes, rng: Random) -> bytes:
    marker = rng.choice([0xC3, 0xC5, 0xC9, 0xCA, 0xCF])
    choices = [pictures.saved(WIDTH, HEIGHT, "CMYK", "JPEG"), pictures.saved(WIDTH, HEIGHT, "I;16", "PNG")]
    return rng.choice([*choices, pictures.coded_as(data, 0xC1, bits=12), pictures.coded_as(data, marker)])


def _wrong_type(frame: pb.Frame, rng: Random) -> bytes:
    """Numbers as another type under the same field number."""
    doubles = b"".join(wire.double(PROPRIO, value) for value in frame.proprio)
    integers = b"".join(wire.number(PROPRIO, rng.getrandbits(31)) for _ in frame.proprio)
    pixels = wire.sized(IMAGES, wire.number(DATA, rng.getrandbits(31)))
    return rng.choice([raw(frame, doubles, "proprio"), raw(frame, integers, "proprio"), raw(frame, pixels, "images")])


def _not_utf8(frame: pb.Frame, rng: Random) -> bytes:
    return raw(frame, wire.sized(INSTRUCTION, b"go " + rng.choice(BROKEN_TEXT) + b" on"))


def _long_text(frame: pb.Frame, rng: Random) -> bytes:
    character = rng.choice("aé拿🙂")
    return message(frame, instruction=character * ((1 << 20) // len(character.encode())))


def _wrong_crc(frame: pb.Frame, rng: Random) -> bytes:
    return message(frame, crc32c=rng.getrandbits(32))


def _future(frame: pb.Frame, rng: Random) -> bytes:
    return message(frame, stamp_ns=frame.stamp_ns + int(10 ** rng.uniform(9.5, 19)))


def _wrong_oneof(_: pb.Frame, rng: Random) -> bytes:
    return pb.ClientMessage(open=OPEN).SerializeToString()


UNPARSABLE = {"MESSAGE_UNPARSABLE"}
PIXELS = "frame.images["
AGREED = (f"{WIDTH}x{HEIGHT}",)
NOT_FINITE = {"PROPRIO_NOT_FINITE"}
KINDS: dict[str, BadInput] = {
    "empty": BadInput(lambda frame, rng: b"", {"MESSAGE_EMPTY"}, "message"),
    "random bytes": BadInput(_random_bytes, UNPARSABLE, "message"),
    "truncated proto": BadInput(_truncated, UNPARSABLE, "message"),
    "trailing bytes": BadInput(_trailing, {"UNKNOWN_FIELD", *UNPARSABLE}, "message"),
    "wrong oneof": BadInput(_wrong_oneof, set(), "open", code="ALREADY_EXISTS", notice=True),
    "missing camera": BadInput(_fewer_images, {"CAMERA_MISSING"}, "frame.images", ("camera",)),
    "extra camera": BadInput(_more_images, {"CAMERA_EXTRA"}, "frame.images", ("2 cameras",)),
    "wrong size": BadInput(_with_image(_other_size), {"IMAGE_WRONG_SIZE"}, PIXELS, AGREED),
    "0x0": BadInput(_with_image(_no_size), {"IMAGE_WRONG_SIZE"}, PIXELS),
    "bomb header": BadInput(_with_image(pictures.bomb), {"IMAGE_WRONG_SIZE", "IMAGE_WRONG_FORMAT"}, PIXELS),
    "truncated JPEG": BadInput(
        _with_image(lambda data, rng: data[: rng.randrange(3, len(data) - 1)]),
        {"IMAGE_TRUNCATED"},
        PIXELS,
        code="DATA_LOSS",
    ),
    "PNG where JPEG was agreed": BadInput(
        _with_image(lambda data, rng: pictures.saved(WIDTH, HEIGHT, rng.choice(["RGB", "L"]), "PNG")),
        {"IMAGE_WRONG_FORMAT"},
        PIXELS,
        ("JPEG",),
    ),
    "CMYK, 16 bits, other codings": BadInput(_with_image(_other_coding), {"IMAGE_WRONG_FORMAT"}, PIXELS),
    "wrong checksum": BadInput(_wrong_crc, {"CRC_MISMATCH"}, "frame.crc32c", code="DATA_LOSS"),
    "NaN": BadInput(_with_joint(lambda rng: math.nan), NOT_FINITE, "frame.proprio[", ("finite", "1e+06")),
    "infinity": BadInput(_with_joint(lambda rng: rng.choice([math.inf, -math.inf])), NOT_FINITE, "frame.proprio["),
    "1e38": BadInput(
        _with_joint(lambda rng: rng.choice([1e38, -1e38, 1.1e6])),
        {"PROPRIO_OUT_OF_RANGE"},
        "frame.proprio[",
        ("1e+06",),
    ),
    "wrong number of joints": BadInput(
        lambda frame, rng: message(frame, proprio=[0.0] * rng.choice([0, 1, 3, 7, 257, 100_000])),
        {"PROPRIO_COUNT"},
        "frame.proprio",
        ("2 numbers",),
    ),
    "wrong type": BadInput(_wrong_type, {"UNKNOWN_FIELD"}, "message.frame"),
    "text that is not UTF-8": BadInput(_not_utf8, UNPARSABLE, "message"),
    "1 MiB of text": BadInput(_long_text, {"TEXT_TOO_LONG"}, "frame.instruction", ("4096",)),
    "duplicate seq": BadInput(
        lambda frame, rng: message(frame, seq=frame.seq - 1), {"SEQ_DUPLICATE"}, "frame.seq", code="OUT_OF_RANGE"
    ),
    "old seq": BadInput(
        lambda frame, rng: message(frame, seq=rng.randrange(frame.seq - 1)),
        {"SEQ_OLD"},
        "frame.seq",
        code="OUT_OF_RANGE",
    ),
    "future stamp": BadInput(_future, {"STAMP_FUTURE"}, "frame.stamp_ns", code="OUT_OF_RANGE"),
}
