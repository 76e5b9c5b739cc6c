"""Checks of messages without a socket."""

from __future__ import annotations

import numpy as np
import pytest
import simplejpeg
from hypothesis import given
from hypothesis import strategies as st

from edgeflow.config.matching import Names
from edgeflow.config.sections import LimitsConfig
from edgeflow.contract import CameraNeed, PolicyInputs
from edgeflow.service.frontends.grpc.checks import check_open, ignored_fields
from edgeflow.service.frontends.grpc.codec import (
    ParsedMessage,
    Unparsable,
    check_frame,
    parse_act_request,
    parse_client_message,
)
from edgeflow.service.observation.checks import check_text
from edgeflow.service.observation.pixels import crc32c, decode_frame
from edgeflow.service.observation.requests import OpenRequest, matched
from edgeflow_client.errors import InvalidArgument, RequestError
from edgeflow_client.rpc import control_pb2 as pb
from edgeflow_client.types import CameraSpec, ImageFormat, Mode, StateSpec
from tests.fuzz import wire
from tests.service.harness import HEIGHT, JPEG, WIDTH, frame_message, jpeg, open_message, received

LIMITS = LimitsConfig()
ONE_CAMERA = PolicyInputs(cameras=(CameraNeed(name="image", named=False),))
CAMERA = CameraSpec("wrist", WIDTH, HEIGHT, ImageFormat.JPEG)


def opened(**changes) -> OpenRequest:
    """A session with a policy that takes any one camera."""
    request = check_open(open_message(**changes), "demo", LIMITS)
    return matched(request, ONE_CAMERA, Names(cameras={}, state={}))


def pixels_of(frame: pb.Frame, request: OpenRequest) -> bytes:
    """What the policy gets of its only camera."""
    (pixels,) = decode_frame(check_frame(received(frame), request, LIMITS), request)
    return bytes(pixels)


def reference_crc(data: bytes) -> int:
    state = 0xFFFFFFFF
    for byte in data:
        state ^= byte
        for _ in range(8):
            state = (state >> 1) ^ (0x82F63B78 if state & 1 else 0)
    return state ^ 0xFFFFFFFF


def test_crc32c_of_the_standard_s_test_vectors():
    assert crc32c([b"123456789"]) == 0xE3069283
    assert crc32c([bytes(32)]) == 0x8A9136AA  # RFC 3720, appendix B.4
    assert crc32c([b"\xff" * 32]) == 0x62A8AB43
    assert crc32c([bytes(range(32))]) == 0x46DD794E
    assert crc32c([]) == 0


@given(st.binary(max_size=700), st.integers(0, 700))
def test_crc32c_of_parts_equals_the_bitwise_one(data: bytes, cut: int):
    assert crc32c([data[:cut], data[cut:]]) == reference_crc(data)


@given(st.binary(max_size=300))
def test_parsing_never_raises(data: bytes):
    assert isinstance(parse_client_message(data), ParsedMessage | Unparsable)
    assert isinstance(parse_act_request(data), ParsedMessage | Unparsable)


def test_an_open_request_is_read_whole():
    message = open_message(mode=pb.MODE_SERIAL, max_action_age_ms=5, proprio_names=["a"], unnorm_key="k")
    request = check_open(message, "demo", LIMITS)
    assert request.cameras == (CAMERA,)
    assert (request.control_period_ns, request.max_action_age_ns, request.mode) == (50_000_000, 5_000_000, Mode.SERIAL)
    assert (request.state, request.unnorm_key, request.instruction) == (
        (StateSpec(name="a", size=1),),
        "k",
        "grasp the red handle",
    )


@pytest.mark.parametrize(("width", "height"), [(8193, 16), (16, 8193), (1, 4_000_000), (4096, 1024), (0, 5)])
def test_a_camera_too_large_or_too_thin_is_rejected(width: int, height: int):
    camera = pb.Camera(name="c", width=width, height=height, format=pb.IMAGE_FORMAT_JPEG)
    opening = pb.Open(cameras=[camera], instruction="go", control_period_ms=100)
    with pytest.raises(InvalidArgument) as caught:
        check_open(opening, "demo", LIMITS)
    assert (caught.value.reason, caught.value.field) == ("CAMERA_SIZE", "open.cameras[0]")


def test_a_long_camera_is_not_too_thin():
    camera = pb.Camera(name="c", width=8192, height=450, format=pb.IMAGE_FORMAT_JPEG)
    assert check_open(pb.Open(cameras=[camera], instruction="go", control_period_ms=100), "demo", LIMITS).cameras


def test_images_come_by_position_or_by_name():
    cameras = [pb.Camera(name=name, width=WIDTH, height=HEIGHT, format=pb.IMAGE_FORMAT_JPEG) for name in "ab"]
    two = opened(cameras=cameras)
    other = jpeg(WIDTH, HEIGHT)[:-2] + b"\xff\xd9"
    first, second = pb.Image(camera="a", data=JPEG), pb.Image(camera="b", data=other)
    by_name = check_frame(received(frame_message(1, images=[second, first])), two, LIMITS)
    by_position = check_frame(
        received(frame_message(1, images=[pb.Image(data=JPEG), pb.Image(data=other)])), two, LIMITS
    )
    assert by_name.images == by_position.images == (JPEG, other)
    twice = [first, first]
    with pytest.raises(InvalidArgument, match="lacks an image from camera 'b'"):
        check_frame(received(frame_message(1, images=twice)), two, LIMITS)


def test_a_good_checksum_passes_and_pixels_are_decoded():
    payload = pixels_of(frame_message(1, crc32c=reference_crc(JPEG)), opened())
    pixels = np.frombuffer(payload, np.uint8).reshape(HEIGHT, WIDTH, 3)
    expected = np.arange(WIDTH * HEIGHT * 3, dtype=np.uint32).astype(np.uint8).reshape(HEIGHT, WIDTH, 3)
    assert pixels.shape == expected.shape


@pytest.mark.parametrize("size", [0, 1, WIDTH * HEIGHT * 3 - 1, WIDTH * HEIGHT * 3 + 1, WIDTH * HEIGHT * 4])
def test_raw_pixels_have_exactly_the_agreed_size(size: int):
    camera = pb.Camera(name="raw", width=WIDTH, height=HEIGHT, format=pb.IMAGE_FORMAT_RGB8)
    request = opened(cameras=[camera])
    good = frame_message(1, bytes(WIDTH * HEIGHT * 3))
    assert pixels_of(good, request) == bytes(WIDTH * HEIGHT * 3)
    with pytest.raises(InvalidArgument, match=r"^frame\.images\[0\]\.data: (has|is empty)"):
        check_frame(received(frame_message(1, bytes(size))), request, LIMITS)


def test_grey_jpegs_become_rgb():
    grey = simplejpeg.encode_jpeg(np.full((HEIGHT, WIDTH, 1), 90, np.uint8), colorspace="GRAY")
    payload = pixels_of(frame_message(1, grey), opened())
    assert len(payload) == WIDTH * HEIGHT * 3 and set(payload) == {90}


@given(st.binary(max_size=400), st.integers(0, 600))
def test_a_damaged_jpeg_decodes_or_is_rejected(junk: bytes, position: int):
    data = JPEG[:position] + junk + JPEG[position + len(junk) :]
    try:
        payload = pixels_of(frame_message(1, data), opened())
    except RequestError as error:
        assert error.field == "frame.images[0].data" and error.reason.startswith("IMAGE_")
    else:
        assert len(payload) == WIDTH * HEIGHT * 3


@pytest.mark.parametrize("text", ["a\u2028b", "a\x1bb", "\ud800", "", " \t", "x" * 4097, "é" * 2049])
def test_bad_text(text: str):
    with pytest.raises(InvalidArgument, match=r"^field: "):
        check_text(text, "field", LIMITS)


@pytest.mark.parametrize("text", ["Nimm die rote Tasse", "拿起杯子", "prends la tasse 🙂", "x" * 4096])
def test_good_text(text: str):
    assert check_text(text, "field", LIMITS) == text


@pytest.mark.parametrize(("number", "ignored"), [(99, None), (100, ("message.frame.images.100",))])
def test_unknown_fields_at_any_depth_are_rejected_or_ignored_by_their_number(number: int, ignored: tuple[str] | None):
    data = wire.sized(2, wire.sized(3, wire.sized(2, JPEG) + wire.number(number, 1)) + wire.number(number + 1, 1))
    parsed = parse_client_message(data)
    assert isinstance(parsed, ParsedMessage)
    if ignored is None:
        with pytest.raises(InvalidArgument, match=rf"^message\.frame\.images: has field {number}, .*version"):
            ignored_fields(parsed.message, parsed.source)
    else:
        assert ignored_fields(parsed.message, parsed.source) == ("message.frame.101", *ignored)
