"""JPEG images, good ones and ones that lie."""

from __future__ import annotations

import io
import struct
from functools import lru_cache
from random import Random

import numpy as np
import simplejpeg
from PIL import Image


@lru_cache(maxsize=64)
def picture(width: int, height: int, seed: int = 0) -> bytes:
    """A smooth coloured image, so that it stays small at any size."""
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    phase = np.arange(3) + seed
    waves = np.sin(x[..., None] / 9 + phase) + np.cos(y[..., None] / 7 + 2 * phase)
    data: bytes = simplejpeg.encode_jpeg((waves * 60 + 128).astype(np.uint8), quality=80)
    return data


def saved(width: int, height: int, mode: str, kind: str) -> bytes:
    """An image as Pillow writes it: mode as RGB, L, CMYK, I;16; kind as JPEG, PNG."""
    buffer = io.BytesIO()
    Image.new(mode, (width, height)).save(buffer, kind)
    return buffer.getvalue()


def declaring(data: bytes, width: int, height: int) -> bytes:
    """The same image with another size in its header."""
    at = frame_header(data) + 5
    return data[:at] + struct.pack(">HH", height, width) + data[at + 4 :]


def coded_as(data: bytes, marker: int, bits: int = 8) -> bytes:
    """The same image declaring another process (0xC3 lossless, 0xC9 arithmetic, …) or sample depth."""
    at = frame_header(data)
    return data[: at + 1] + bytes([marker]) + data[at + 2 : at + 4] + bytes([bits]) + data[at + 5 :]


def with_scans(data: bytes, scans: int) -> bytes:
    """A progressive file that asks for many passes over the same pixels."""
    at = data.index(b"\xff\xda")
    head = coded_as(data, 0xC2)[:at]
    return head + b"\xff\xda\x00\x0c\x03\x01\x00\x02\x11\x03\x11\x00\x00\x00" * scans + b"\xff\xd9"


def bomb(data: bytes, rng: Random) -> bytes:
    """A small file that declares or demands far more than it has."""
    huge = rng.randrange(5_000, 65_536), rng.randrange(5_000, 65_536)
    return rng.choice(
        [declaring(data, *huge), declaring(data, 65_535, 65_535), with_scans(data, rng.randrange(17, 999))]
    )


def frame_header(data: bytes) -> int:
    """Where the baseline frame header starts."""
    return data.index(b"\xff\xc0")
