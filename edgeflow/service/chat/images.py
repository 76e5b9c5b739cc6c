"""Images of a chat request: `data:` URLs decoded to RGB; sizes are checked before pixels, nothing is fetched.

Images are decoded as a viewer shows them: turned as EXIF says, on white where they are transparent, in 8 bits.
"""

from __future__ import annotations

import base64
import binascii
import io
import struct

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from edgeflow.config.sections import LimitsConfig
from edgeflow.service.observation.jpeg import orientation, read_jpeg
from edgeflow_client.errors import InvalidArgument
from edgeflow_client.reasons import Reason

_FORMATS = {"data:image/jpeg;base64": "JPEG", "data:image/jpg;base64": "JPEG", "data:image/png;base64": "PNG"}
_TURN = Image.Transpose
_TURNS = {  # what undoes an EXIF orientation; 1 is upright
    2: _TURN.FLIP_LEFT_RIGHT,
    3: _TURN.ROTATE_180,
    4: _TURN.FLIP_TOP_BOTTOM,
    5: _TURN.TRANSPOSE,
    6: _TURN.ROTATE_270,
    7: _TURN.TRANSVERSE,
    8: _TURN.ROTATE_90,
}


def read_image(url: str, field: str, limits: LimitsConfig) -> NDArray[np.uint8]:
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
    if kind == "JPEG":
        header = read_jpeg(data, field, more=True)  # cameras write data after the image
        width, height = header.width, header.height
    else:
        width, height = _png_size(data, field)
    if width * height > limits.image_pixels:
        text = f"is {width}x{height}; the limit is {limits.image_pixels} pixels"
        raise InvalidArgument(text, field=field, reason=Reason.IMAGE_TOO_LARGE)
    if max(width, height) > limits.image_side:
        text = f"is {width}x{height}; a side may have at most {limits.image_side} pixels"
        raise InvalidArgument(text, field=field, reason=Reason.IMAGE_TOO_LARGE)
    try:
        image = Image.open(io.BytesIO(data), formats=[kind])
        image.load()
        if kind == "PNG":
            _match_key(image, data[24])
        turned = _turned(image)
        return _eight_bits(turned) if turned.mode.startswith("I") else _on_white(turned)
    except Exception:  # the library raises anything on files that are broken in the middle
        raise _broken(kind, field) from None


def _match_key(image: Image.Image, bits: int) -> None:
    """Bring a PNG's transparent colour, which is stored in the file's bits per sample, to those of the image."""
    key = image.info.get("transparency")
    if image.mode == "L" and isinstance(key, int) and bits < 8:
        image.info["transparency"] = key * 255 // ((1 << bits) - 1)
    elif image.mode == "RGB" and isinstance(key, tuple) and bits == 16:
        image.info["transparency"] = tuple(each >> 8 for each in key)


def _turned(image: Image.Image) -> Image.Image:
    """The image as its EXIF orientation says."""
    turn = _TURNS.get(orientation(image.info.get("exif", b"")))
    return image if turn is None else image.transpose(turn)


def _eight_bits(image: Image.Image) -> NDArray[np.uint8]:
    """A grey image of 16 bits in 8 bits, the largest value white; one value may be transparent."""
    values = np.asarray(image).astype(np.uint32)
    grey = ((values * 255 + 32767) // 65535).astype(np.uint8)
    if "transparency" in image.info:
        grey[values == image.info["transparency"]] = 255
    return np.repeat(grey[:, :, None], 3, axis=2)


def _on_white(image: Image.Image) -> NDArray[np.uint8]:
    if not image.has_transparency_data:
        return np.array(image.convert("RGB"))
    shown = image.convert("RGBA")
    white = Image.new("RGBA", shown.size, "white")
    return np.array(Image.alpha_composite(white, shown).convert("RGB"))


def _png_size(data: bytes, field: str) -> tuple[int, int]:
    """The size in a PNG's first chunk: signature, length, IHDR, width, height."""
    if data[:8] != b"\x89PNG\r\n\x1a\n" or data[12:16] != b"IHDR" or len(data) < 24:
        raise _broken("PNG", field)
    width, height = struct.unpack(">II", data[16:24])
    return width, height


def _broken(kind: str, field: str) -> InvalidArgument:
    return InvalidArgument(f"is not a readable {kind}", field=field, reason=Reason.IMAGE_BROKEN)
