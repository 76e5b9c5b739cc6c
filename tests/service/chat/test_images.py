"""Pictures of a request as a viewer shows them: 16 bits, transparency, orientation."""

from __future__ import annotations

import base64
import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image, ImageOps

from edgeflow.config.sections import LimitsConfig
from edgeflow.service.chat.images import read_image

GREY, RGB, PALETTE, GREY_ALPHA, RGBA = 0, 2, 3, 4, 6
WHITE = [255, 255, 255]


def seen(data: bytes, kind: str = "png") -> np.ndarray:
    return read_image(f"data:image/{kind};base64,{base64.b64encode(data).decode()}", "url", LimitsConfig())


def png(width: int, bits: int, colour: int, row: bytes, **chunks: bytes) -> bytes:
    """One row, written by hand: the library does not write all that others do."""
    head = struct.pack(">IIBBBBB", width, 1, bits, colour, 0, 0, 0)
    parts = [(b"IHDR", head), *((name.encode(), data) for name, data in chunks.items())]
    parts += [(b"IDAT", zlib.compress(b"\0" + row)), (b"IEND", b"")]
    made = [
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in parts
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(made)


def words(*values: int) -> bytes:
    return struct.pack(f">{len(values)}H", *values)


PICTURES = {
    "grey, 16 bits": (png(3, 16, GREY, words(0, 0x8000, 0xFFFF)), [[0] * 3, [128] * 3, WHITE]),
    "grey, 16 bits, one value transparent": (png(2, 16, GREY, words(1000, 1001), tRNS=words(1000)), [WHITE, [4] * 3]),
    "grey, 8 bits, one value transparent": (png(2, 8, GREY, bytes([7, 9]), tRNS=words(7)), [WHITE, [9] * 3]),
    "grey, 4 bits, one value transparent": (png(2, 4, GREY, b"\x35", tRNS=words(3)), [WHITE, [85] * 3]),
    "grey, 2 bits, one value transparent": (png(2, 2, GREY, b"\x10", tRNS=words(1)), [[0] * 3, WHITE]),
    "grey, 1 bit, one value transparent": (png(2, 1, GREY, b"\x40", tRNS=words(0)), [WHITE, WHITE]),
    "grey with alpha": (png(2, 8, GREY_ALPHA, bytes([10, 0, 10, 255])), [WHITE, [10] * 3]),
    "grey with alpha, 16 bits": (png(2, 16, GREY_ALPHA, words(10, 0, 0, 65535)), [WHITE, [0] * 3]),
    "colour, 16 bits": (png(1, 16, RGB, words(257, 0x8000, 65535)), [[1, 128, 255]]),
    "colour, one transparent": (png(2, 8, RGB, bytes([1, 2, 3, 4, 5, 6]), tRNS=words(1, 2, 3)), [WHITE, [4, 5, 6]]),
    "colour, 16 bits, one transparent": (
        png(2, 16, RGB, words(0x102, 0x203, 0x304, 0x405, 0x506, 0x607), tRNS=words(0x102, 0x203, 0x304)),
        [WHITE, [4, 5, 6]],
    ),
    "palette": (png(2, 8, PALETTE, bytes([0, 1]), PLTE=bytes([9, 9, 9, 5, 6, 7])), [[9, 9, 9], [5, 6, 7]]),
    "palette, one transparent": (
        png(2, 8, PALETTE, bytes([0, 1]), PLTE=bytes([9, 9, 9, 5, 6, 7]), tRNS=b"\0"),
        [WHITE, [5, 6, 7]],
    ),
    "alpha": (png(3, 8, RGBA, bytes([1, 2, 3, 0, 1, 2, 3, 255, 255, 0, 0, 128])), [WHITE, [1, 2, 3], [255, 127, 127]]),
    "alpha, 16 bits": (png(2, 16, RGBA, words(1, 2, 3, 0, 0, 65535, 0, 65535)), [WHITE, [0, 255, 0]]),
}


@pytest.mark.parametrize("name", PICTURES)
def test_every_kind_of_png_is_what_a_viewer_shows(name: str):
    data, expected = PICTURES[name]
    assert np.abs(seen(data)[0].astype(int) - expected).max() <= 1


@pytest.mark.parametrize("kind", ["jpeg", "png"])
@pytest.mark.parametrize("orientation", range(10))
def test_a_picture_is_turned_as_its_metadata_says(kind: str, orientation: int):
    pixels = np.zeros((16, 24, 3), np.uint8)
    pixels[:8, :8], exif, file = 255, Image.Exif(), io.BytesIO()
    exif[0x0112] = orientation
    Image.fromarray(pixels).save(file, kind, exif=exif)
    found = seen(file.getvalue(), kind)
    upright = np.asarray(ImageOps.exif_transpose(Image.open(file)))
    assert np.array_equal(found, upright)
    assert found.shape[:2] == ((24, 16) if orientation in (5, 6, 7, 8) else (16, 24))


def test_a_turned_picture_of_16_bits():
    exif, file = Image.Exif(), io.BytesIO()
    exif[0x0112] = 6
    Image.fromarray(np.array([[0, 1], [2, 3]], np.uint16) * 257).save(file, "png", exif=exif)
    assert seen(file.getvalue())[:, :, 0].tolist() == [[2, 0], [3, 1]]
