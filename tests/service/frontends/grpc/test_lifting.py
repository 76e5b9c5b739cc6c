"""Images lifted out of a message: protobuf, which parses the whole message here, says what is right."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeflow.service.frontends.grpc import codec
from edgeflow.service.frontends.grpc.checks import ignored_fields
from edgeflow.service.frontends.grpc.codec import ParsedMessage, lift_images, parse_act_request, parse_client_message
from edgeflow.service.sessions import runner
from edgeflow_client.errors import InvalidArgument
from edgeflow_client.rpc import control_pb2 as pb
from tests.fuzz import wire
from tests.fuzz.targets import seeds
from tests.service.harness import HEIGHT, JPEG, WIDTH, frame_message, open_message, serving

CORPUS = Path(__file__).parents[3] / "fuzz" / "corpus" / "parser"
PARSERS = {pb.ClientMessage: parse_client_message, pb.ActRequest: parse_act_request}
TRAIN = b"\x0d" * 40
GROUP_BEGINS, GROUP_ENDS, FIXED64 = 3, 4, 1


def compare(kind: type[pb.ClientMessage] | type[pb.ActRequest], data: bytes) -> ParsedMessage | None:
    """Compare what the service parses with what protobuf builds; None where both take the bytes for no message."""
    parsed = PARSERS[kind](data)
    try:
        expected = kind.FromString(data)
    except DecodeError:
        assert not isinstance(parsed, ParsedMessage)
        return None
    assert isinstance(parsed, ParsedMessage)
    if kind is pb.ActRequest or expected.WhichOneof("kind") == "frame":
        assert list(parsed.image_data()) == [image.data for image in expected.frame.images]
    verdict = unknown_field(parsed.message, parsed.source)
    assert verdict == unknown_field(expected, data)
    if not isinstance(verdict, str):
        for image in expected.frame.images if parsed.lifted is not None else ():
            image.ClearField("data")
        assert parsed.message.SerializeToString() == expected.SerializeToString()
    return parsed


def unknown_field(message: pb.ClientMessage | pb.ActRequest, source: bytes) -> tuple[str, ...] | str:
    """The verdict on unknown fields: those that are ignored, and discarded with it, or why they are rejected."""
    try:
        return ignored_fields(message, source)
    except InvalidArgument as error:
        return str(error)


def varint(value: int, padding: int) -> bytes:
    """A number with bytes that add nothing."""
    made = bytearray(wire.varint(value))
    for _ in range(padding):
        made[-1] |= 0x80
        made.append(0)
    return bytes(made)


@st.composite
def a_field(draw: st.DrawFn, inside: st.SearchStrategy[bytes]) -> bytes:
    """A field of any number and wire type; lengths are sometimes wrong, numbers sometimes padded."""
    number, kind = (
        draw(st.integers(0, 9) | st.integers(0, 1 << 29)),
        draw(st.sampled_from([0, 1, 2, 2, 2, 2, 2, 3, 4, 5, 6])),
    )
    padding = draw(st.sampled_from([0] * 20 + [1, 2, 4, 9, 10]))
    tag = varint(number << 3 | kind, padding)
    if kind == 2:
        value = draw(inside)
        wrong = draw(st.sampled_from([0] * 20 + [-1, 1, 1 << 31, 1 << 40]))
        return tag + varint(max(len(value) + wrong, 0), draw(st.sampled_from([0] * 10 + [1]))) + value
    size = {0: 1, 1: 8, 5: 4}.get(kind, 0)
    return tag + (varint(draw(st.integers(0, (1 << 64) - 1)), padding) if kind == 0 else bytes(size))


def fields(inside: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    return st.lists(a_field(inside), max_size=4).map(b"".join)


def sized(number: int, inside: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    return inside.map(lambda value: wire.sized(number, value))


NUMBERS = st.lists(st.sampled_from([b"\x25\0\0\x80?", wire.sized(4, bytes(8)), wire.number(1, 7)]), max_size=3).map(
    b"".join
)
DATA, CAMERA = sized(2, st.binary(max_size=300)), sized(1, st.binary(max_size=3))
IMAGE = st.lists(DATA | CAMERA | a_field(st.binary(max_size=3)), max_size=3).map(b"".join)
FRAME = st.lists(sized(3, IMAGE) | sized(5, st.text().map(str.encode)) | NUMBERS | fields(IMAGE), max_size=4).map(
    b"".join
)
KINDS = sized(1, st.just(open_message().SerializeToString())) | sized(3, st.just(b"\x0a\x01a")) | sized(4, st.just(b""))
MESSAGES = st.lists(sized(2, FRAME) | sized(2, FRAME) | KINDS | fields(FRAME), max_size=3).map(b"".join)


@settings(max_examples=400)
@given(MESSAGES)
def test_messages_of_all_kinds(data: bytes):
    for kind in PARSERS:
        compare(kind, data)


GOOD = pb.ClientMessage(
    frame=frame_message(
        7, images=[pb.Image(camera="a", data=JPEG), pb.Image(data=TRAIN), pb.Image()], proprio=[1.0, 2.0], crc32c=3
    )
)
GOOD.frame.playing.seq = 6
WHOLE = GOOD.SerializeToString()


@settings(max_examples=300)
@given(st.data())
def test_damaged_messages(data: st.DataObject):
    """A byte changed, some removed, some doubled."""
    damaged = bytearray(WHOLE)
    heads = st.integers(0, 40) | st.integers(len(WHOLE) - 100, len(WHOLE) - 1)
    for _ in range(data.draw(st.integers(1, 2))):
        where = data.draw(heads)
        match data.draw(st.sampled_from(["change", "cut", "double"])):
            case "change":
                damaged[where : where + 1] = bytes((data.draw(st.integers(0, 255)),))
            case "cut":
                del damaged[where : where + data.draw(st.integers(1, 50))]
            case "double":
                damaged[where:where] = damaged[where : where + data.draw(st.integers(1, 50))]
    for kind in PARSERS:
        compare(kind, bytes(damaged))


def test_messages_that_fuzzing_kept():
    kept = [path.read_bytes() for path in CORPUS.iterdir()]
    for data in [*kept, *seeds("parser")]:
        for kind in PARSERS:
            compare(kind, data)


IMAGE_OF_TRAIN = wire.sized(3, wire.sized(2, TRAIN))
ODD = {
    "data twice": wire.sized(2, wire.sized(3, wire.sized(2, b"first") + wire.sized(2, TRAIN))),
    "a camera after the data": wire.sized(2, wire.sized(3, wire.sized(2, TRAIN) + wire.sized(1, b"a"))),
    "another kind before": wire.sized(4, b"") + wire.sized(2, IMAGE_OF_TRAIN),
    "another kind after": wire.sized(2, IMAGE_OF_TRAIN) + wire.sized(4, b""),
    "numbers one by one": wire.sized(2, IMAGE_OF_TRAIN + b"\x25\0\0\x80?" * 7),
    "an unknown field of the image": wire.sized(2, wire.sized(3, wire.sized(2, TRAIN) + wire.number(9, 1))),
    "an unknown field of the frame": wire.sized(2, IMAGE_OF_TRAIN + wire.sized(100, b"x")),
    "an unknown field beside the frame": wire.sized(2, IMAGE_OF_TRAIN) + wire.double(77, 1.0),
    "a number as data": wire.sized(2, wire.sized(3, wire.number(2, 5)) + IMAGE_OF_TRAIN),
    "a number as frame": wire.number(2, 5) + wire.sized(2, IMAGE_OF_TRAIN),
}
LEFT = {
    "two frames, which are one": wire.sized(2, IMAGE_OF_TRAIN) * 2,
    "two frames, of which the second counts": wire.sized(2, IMAGE_OF_TRAIN) + b"\x22\0" + wire.sized(2, IMAGE_OF_TRAIN),
    "a group": wire.sized(2, IMAGE_OF_TRAIN + b"\x4b\x08\x01\x4c"),
    "a padded length": wire.sized(2, b"\x1a\xac\x00" + wire.sized(2, TRAIN) + b"\x08\x01"),
    "hundreds of numbers one by one": wire.sized(2, b"\x25\0\0\x80?" * 600 + IMAGE_OF_TRAIN),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_messages_are_lifted_as_protobuf_reads_them(name: str):
    parsed = compare(pb.ClientMessage, ODD[name])
    assert parsed is not None and parsed.lifted and TRAIN in parsed.lifted


@pytest.mark.parametrize("name", LEFT)
def test_unusual_messages_are_left_to_protobuf(name: str):
    parsed = compare(pb.ClientMessage, LEFT[name])
    assert parsed is None or parsed.lifted is None


def test_nothing_is_copied():
    lifted = lift_images(WHOLE)
    assert lifted is not None and len(lifted.rest) < 80
    assert all(image.obj is WHOLE for image in lifted.images)
    assert [bytes(image) for image in lifted.images] == [JPEG, TRAIN, b""]


async def test_a_served_raw_frame_is_passed_on_where_grpc_left_it(checkpoint, monkeypatch):
    """Neither protobuf nor the session holds or copies pixels: they go to the worker as a view of gRPC's message."""
    lifted, passed_on = [], []
    lift, pixels = codec.lift_images, runner.raw_pixels
    monkeypatch.setattr(codec, "lift_images", lambda data: lifted.append((data, lift(data))) or lifted[-1][1])
    monkeypatch.setattr(runner, "raw_pixels", lambda *given: passed_on.append(pixels(*given)) or passed_on[-1])
    async with serving(checkpoint) as served:
        robot = served.robot()
        await robot.open(cameras=[pb.Camera(name="a", width=WIDTH, height=HEIGHT, format=pb.IMAGE_FORMAT_RGB8)])
        await robot.frame(1, bytes(range(256)) * (WIDTH * HEIGHT * 3 // 256))
        await robot.action(1)
    (message, parts), (view,) = lifted[-1], passed_on[-1]
    assert len(parts.rest) < 40 < len(message) and view.obj is message
