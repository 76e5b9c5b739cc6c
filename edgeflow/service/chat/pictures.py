"""Images of a chat request: `data:` URLs decoded to RGB; sizes are checked before pixels, nothing is fetched."""

from __future__ import annotations

import base64
import binascii
import io
import struct

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from edgeflow.config import LimitsConfig
from edgeflow.errors import InvalidArgument
from edgeflow.reasons import Reason
from edgeflow.service.images.jpeg import read_jpeg

_FORMATS = {"data:image/jpeg;base64": "JPEG", "data:image/jpg;base64": "JPEG", "data:image/png;base64": "PNG"}


def read_picture(url: str, field: str, limits: LimitsConfig) -> NDArray[np.uint8]:
    """Decode an image to RGB [H, W, 3]; InvalidArgument unless it is a JPEG or PNG within the limits."""
    head, _, text = url.partition(",")
    kind = _FORMATS.get(head.lower())
    if kind is None:
        raise InvalidArgument(
            "must be a data: URL with a base64 JPEG or PNG; other URLs are not fetched",
            field=field,
            reason=Reason.IMAGE_URL,
        )
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidArgument("must be base64", field=field, reason=Reason.IMAGE_BASE64) from None
    width, height = _jpeg_size(data, field) if kind == "JPEG" else _png_size(data, field)
    if width * height > limits.image_pixels:
        text = f"is {width}x{height}; the limit is {limits.image_pixels} pixels"
        raise InvalidArgument(text, field=field, reason=Reason.IMAGE_TOO_LARGE)
    if max(width, height) > limits.image_side:
        text = f"is {width}x{height}; a side may have at most {limits.image_side} pixels"
        raise InvalidArgument(text, field=field, reason=Reason.IMAGE_TOO_LARGE)
    try:
        return np.array(Image.open(io.BytesIO(data), formats=[kind]).convert("RGB"))
    except Exception:  # the library raises anything on files that are broken in the middle
        raise _broken(kind, field) from None


def _jpeg_size(data: bytes, field: str) -> tuple[int, int]:
    """The size in a JPEG's header; data after the image, which cameras write, is accepted."""
    header = read_jpeg(data, field, more=True)
    return header.width, header.height


def _png_size(data: bytes, field: str) -> tuple[int, int]:
    """The size in a PNG's first chunk: signature, length, IHDR, width, height."""
    if data[:8] != b"\x89PNG\r\n\x1a\n" or data[12:16] != b"IHDR" or len(data) < 24:
        raise _broken("PNG", field)
    width, height = struct.unpack(">II", data[16:24])
    return width, height


def _broken(kind: str, field: str) -> InvalidArgument:
    return InvalidArgument(f"is not a readable {kind}", field=field, reason=Reason.IMAGE_BROKEN)
