"""Pictures of a chat request: `data:` URLs to RGB, sizes before pixels, nothing fetched."""

from __future__ import annotations

import base64
import binascii
import io
import warnings

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from edgeflow.config import LimitsConfig
from edgeflow.errors import InvalidArgument

_FORMATS = {"data:image/jpeg;base64": "JPEG", "data:image/jpg;base64": "JPEG", "data:image/png;base64": "PNG"}


def read_picture(url: str, field: str, limits: LimitsConfig) -> NDArray[np.uint8]:
    """[H, W, 3] RGB; InvalidArgument when it is no JPEG or PNG within the limits."""
    head, _, text = url.partition(",")
    kind = _FORMATS.get(head.lower())
    if kind is None:
        raise InvalidArgument(
            "is a data: URL of a JPEG or PNG in base64; nothing is fetched", field=field, reason="IMAGE_URL"
        )
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidArgument("is not base64", field=field, reason="IMAGE_BASE64") from None
    return _decode(data, kind, field, limits)


def _decode(data: bytes, kind: str, field: str, limits: LimitsConfig) -> NDArray[np.uint8]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            image = Image.open(io.BytesIO(data), formats=[kind])
            width, height = image.size
            if width * height > limits.image_pixels:
                text = f"is {width}x{height}, the limit is {limits.image_pixels} pixels"
                raise InvalidArgument(text, field=field, reason="IMAGE_TOO_LARGE")
            return np.array(image.convert("RGB"))
    except InvalidArgument:
        raise
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError, Warning, EOFError, MemoryError):
        raise InvalidArgument(f"is not a readable {kind}", field=field, reason="IMAGE_BROKEN") from None
