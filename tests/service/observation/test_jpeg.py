"""The image gate: what a header may say, and that nothing it lets through surprises the decoder."""

from __future__ import annotations

import io
import struct
import time

import numpy as np
import pytest
from PIL import Image

from edgeflow.service.observation.jpeg import MAX_SCANS, MAX_SEGMENTS, JpegHeader, orientation, read_jpeg
from edgeflow.service.observation.pixels import check_image, decode_jpeg
from edgeflow_client.errors import RequestError
from edgeflow_client.types import CameraSpec, ImageFormat
from tests.service.harness import HEIGHT, JPEG, WIDTH

CAMERA = CameraSpec("wrist", WIDTH, HEIGHT, ImageFormat.JPEG)
FRAME = JPEG.index(b"\xff\xc0")
SCAN = JPEG.index(b"\xff\xda")
FRAME_END = FRAME + 2 + int.from_bytes(JPEG[FRAME + 2 : FRAME + 4], "big")
PROGRESSIVE_FRAME = b"\xff\xc2\x00\x0b\x08\x00\x18\x00\x20\x01\x01\x11\x00"
ONE_SCAN = b"\xff\xda\x00\x08\x01\x01\x00\x00\x3f\x00\x00"


def saved(mode: str = "RGB", **options: object) -> bytes:
    buffer = io.BytesIO()
    pixels = np.arange(HEIGHT * WIDTH * 3, dtype=np.uint32).astype(np.uint8).reshape(HEIGHT, WIDTH, 3)
    Image.fromarray(pixels).convert(mode).save(buffer, "JPEG", **options)
    return buffer.getvalue()


def with_frame(marker: int = 0xC0, precision: int = 8, width: int = WIDTH, height: int = HEIGHT) -> bytes:
    head = bytes([0xFF, marker]) + JPEG[FRAME + 2 : FRAME + 4] + struct.pack(">BHH", precision, height, width)
    return JPEG[:FRAME] + head + JPEG[FRAME + 9 :]


def rejection(data: bytes) -> str:
    with pytest.raises(RequestError) as caught:
        check_image(data, CAMERA, "image")
    assert caught.value.text.startswith("image: ")
    return caught.value.reason


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("progressive", [False, True])
def test_images_of_real_cameras_pass_and_decode(mode: str, progressive: bool):
    data = saved(mode, progressive=progressive, restart_marker_blocks=2)
    header = read_jpeg(data, "image")
    assert (header.width, header.height, header.components) == (WIDTH, HEIGHT, len(mode))
    assert 1 < header.scans <= MAX_SCANS if progressive else header.scans == 1
    assert decode_jpeg(data, CAMERA, "image").shape == (HEIGHT, WIDTH, 3)


@pytest.mark.parametrize("padding", [b"", b"\x00" * 512, b"\xff" * 512])
def test_padding_of_a_camera_s_buffer_passes(padding: bytes):
    assert read_jpeg(JPEG + padding, "image") == JpegHeader(WIDTH, HEIGHT, 3, 1, 1)
    assert decode_jpeg(JPEG + padding, CAMERA, "image").shape == (HEIGHT, WIDTH, 3)


def test_fill_bytes_before_a_marker_pass():
    data = JPEG[:FRAME] + b"\xff" * 9 + JPEG[FRAME:]
    assert read_jpeg(data, "image").width == WIDTH
    assert np.array_equal(decode_jpeg(data, CAMERA, "image"), decode_jpeg(JPEG, CAMERA, "image"))


@pytest.mark.parametrize("value", range(10))
def test_a_picture_that_is_stored_turned_is_rejected(value: int):
    """A policy would see it turned; whoever looks at the file would not."""
    exif = Image.Exif()
    exif[0x0110], exif[0x0112] = "a camera", value
    data = saved(exif=exif)
    assert read_jpeg(data, "image").orientation == (value if 2 <= value <= 8 else 1)
    if 2 <= value <= 8:
        with pytest.raises(RequestError, match=f"has EXIF orientation {value}; only 1"):
            check_image(data, CAMERA, "image")
    else:
        check_image(data, CAMERA, "image")


ENTRY = struct.pack(">HHIHH", 0x0112, 3, 1, 6, 0)


@pytest.mark.parametrize(
    ("tiff", "found"),
    [
        (b"MM\0*" + struct.pack(">IH", 8, 1) + ENTRY, 6),
        (b"II*\0" + struct.pack("<IHHHII", 8, 1, 0x0112, 4, 1, 8), 8),
        (b"MM\0*" + struct.pack(">IH", 8, 65535) + ENTRY, 6),
        (b"MM\0*" + struct.pack(">IH", 8, 0) + ENTRY, 1),
        (b"MM\0*" + struct.pack(">IH", 8, 1) + ENTRY[:-1], 1),
        (b"MM\0*" + struct.pack(">IH", 8, 1) + ENTRY.replace(b"\0\3", b"\0\2", 1), 1),
        (b"MM\0*" + struct.pack(">I", 8), 1),
        (b"MM\0*" + struct.pack(">I", 0xFFFFFFFF) + ENTRY, 1),
        (b"MM\0*\0\0", 1),
        (b"MM\0*", 1),
        (b"", 1),
        (b"XX" + bytes(100), 1),
    ],
)
def test_metadata_that_is_broken_says_nothing(tiff: bytes, found: int):
    assert orientation(b"Exif\0\0" + tiff) == orientation(tiff) == found


REJECTED = {
    "text": (b"hello", "IMAGE_WRONG_FORMAT"),
    "only the start": (b"\xff\xd8\xff", "IMAGE_TRUNCATED"),
    "start and end": (b"\xff\xd8\xff\xd9", "IMAGE_UNREADABLE"),
    "no pixels": (JPEG[:SCAN] + b"\xff\xd9", "IMAGE_UNREADABLE"),
    "pixels before the frame header": (JPEG[:FRAME] + JPEG[SCAN:], "IMAGE_UNREADABLE"),
    "two frame headers": (JPEG[:FRAME_END] + JPEG[FRAME:], "IMAGE_UNREADABLE"),
    "two images": (JPEG + JPEG, "IMAGE_TRAILING_DATA"),
    "a start inside": (JPEG[:FRAME] + b"\xff\xd8" + JPEG[FRAME:], "IMAGE_UNREADABLE"),
    "a restart between segments": (JPEG[:FRAME] + b"\xff\xd0" + JPEG[FRAME:], "IMAGE_UNREADABLE"),
    "a reserved marker": (JPEG[:FRAME] + b"\xff\x4f\x00\x02" + JPEG[FRAME:], "IMAGE_UNREADABLE"),
    "junk between segments": (JPEG[:FRAME] + b"junk" + JPEG[FRAME:], "IMAGE_UNREADABLE"),
    "a length of 0": (JPEG[: FRAME + 2] + b"\0\0" + JPEG[FRAME + 4 :], "IMAGE_UNREADABLE"),
    "a length of 1": (JPEG[: FRAME + 2] + b"\0\1" + JPEG[FRAME + 4 :], "IMAGE_UNREADABLE"),
    "a frame header of another length": (JPEG[: FRAME + 2] + b"\0\x0b" + JPEG[FRAME + 4 :], "IMAGE_UNREADABLE"),
    "a length beyond the end": (JPEG[:SCAN] + b"\xff\xe1\xff\xff" + JPEG[SCAN:], "IMAGE_TRUNCATED"),
    "data behind the end": (JPEG + b"PK\x03\x04", "IMAGE_TRAILING_DATA"),
    "mixed padding": (JPEG + b"\0\xff", "IMAGE_TRAILING_DATA"),
    "0x0": (with_frame(width=0, height=0), "IMAGE_WRONG_SIZE"),
    "no height": (with_frame(height=0), "IMAGE_WRONG_SIZE"),
    "65535x65535": (with_frame(width=65535, height=65535), "IMAGE_WRONG_SIZE"),
    "one row more": (with_frame(height=HEIGHT + 1), "IMAGE_WRONG_SIZE"),
    "12 bits": (with_frame(precision=12), "IMAGE_WRONG_FORMAT"),
    "CMYK": (saved("CMYK"), "IMAGE_WRONG_FORMAT"),
    "lossless": (with_frame(0xC3), "IMAGE_WRONG_FORMAT"),
    "hierarchical": (with_frame(0xC5), "IMAGE_WRONG_FORMAT"),
    "arithmetic": (with_frame(0xC9), "IMAGE_WRONG_FORMAT"),
    "arithmetic progressive": (with_frame(0xCA), "IMAGE_WRONG_FORMAT"),
    "number of lines": (JPEG[:SCAN] + b"\xff\xdc\x00\x04\x00\x18" + JPEG[SCAN:], "IMAGE_WRONG_FORMAT"),
    "scans": (b"\xff\xd8" + PROGRESSIVE_FRAME + ONE_SCAN * (MAX_SCANS + 1) + b"\xff\xd9", "IMAGE_WRONG_FORMAT"),
    "segments": (b"\xff\xd8" + b"\xff\xfe\x00\x02" * (MAX_SEGMENTS + 1) + JPEG[2:], "IMAGE_UNREADABLE"),
}


@pytest.mark.parametrize("name", REJECTED)
def test_images_rejected_before_decoding(name: str):
    data, reason = REJECTED[name]
    assert rejection(data) == reason


def test_a_file_cut_anywhere_is_truncated():
    assert {rejection(JPEG[:cut]) for cut in range(3, len(JPEG) - 1)} == {"IMAGE_TRUNCATED"}


@pytest.mark.parametrize("filling", [b"\xff", b"\xff\x00", b"\xff\xd0", b"\xff\xff\x00", b"\xff\xfe\x00\x02"])
def test_a_megabyte_made_to_be_slow_to_read_is_not(filling: bytes):
    for head in (JPEG[:2], JPEG[: SCAN + 14]):
        data = head + filling * ((1 << 20) // len(filling))
        start = time.thread_time()
        rejection(data)
        assert time.thread_time() - start < 1.0
