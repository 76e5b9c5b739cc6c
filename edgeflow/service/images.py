"""Camera images: the header is checked against what was agreed before any pixel is decoded."""

from __future__ import annotations

import numpy as np
import simplejpeg
from numpy.typing import NDArray

from edgeflow.errors import DataLoss, InvalidArgument
from edgeflow.types import CameraSpec, ImageFormat

MAX_SCANS = 64  # a progressive JPEG has about ten; thousands would make a small file slow to decode
_START_OF_IMAGE = b"\xff\xd8\xff"
_START_OF_SCAN = b"\xff\xda"
_END_OF_IMAGE = b"\xff\xd9"
_COLORSPACES = {"RGB", "YCbCr", "GRAY", "Gray"}

Pixels = NDArray[np.uint8]


def check_image(data: bytes, camera: CameraSpec, field: str) -> None:
    """Everything about an image that can be told without decoding it."""
    if not data:
        raise InvalidArgument("is empty", field=field, reason="IMAGE_EMPTY")
    if camera.format is ImageFormat.RGB8:
        _check_raw(data, camera, field)
        return
    width, height = jpeg_size(data, field)
    if (width, height) != (camera.width, camera.height):
        raise InvalidArgument(
            f"is {width}x{height}, camera {camera.name!r} was opened with {camera.width}x{camera.height}",
            field=field,
            reason="IMAGE_WRONG_SIZE",
        )


def jpeg_size(data: bytes, field: str) -> tuple[int, int]:
    """Width and height that a JPEG header declares; InvalidArgument where it is none that we decode."""
    if not data.startswith(_START_OF_IMAGE):
        raise InvalidArgument("is not a JPEG image", field=field, reason="IMAGE_WRONG_FORMAT")
    try:
        height, width, colorspace, _ = simplejpeg.decode_jpeg_header(data)
    except ValueError:
        raise _unreadable(data, field) from None
    if colorspace not in _COLORSPACES:
        raise InvalidArgument(
            f"has colour space {colorspace}, not YCbCr, RGB or grey", field=field, reason="IMAGE_WRONG_FORMAT"
        )
    if width < 1 or height < 1:
        raise InvalidArgument(f"is {width}x{height}", field=field, reason="IMAGE_WRONG_SIZE")
    if data.count(_START_OF_SCAN) > MAX_SCANS:
        raise InvalidArgument(f"has more than {MAX_SCANS} scans", field=field, reason="IMAGE_WRONG_FORMAT")
    return width, height


def decode_jpeg(data: bytes, camera: CameraSpec, field: str) -> Pixels:
    """RGB [height, width, 3] of a JPEG that passed `check_image`. Runs without the interpreter lock."""
    try:
        pixels: Pixels = simplejpeg.decode_jpeg(data, colorspace="RGB")
    except ValueError:
        raise _unreadable(data, field) from None
    if pixels.shape != (camera.height, camera.width, 3):
        raise InvalidArgument("decodes to another size than its header says", field=field, reason="IMAGE_UNREADABLE")
    return pixels


def _check_raw(data: bytes, camera: CameraSpec, field: str) -> None:
    expected = camera.width * camera.height * 3
    if len(data) != expected:
        raise InvalidArgument(
            f"has {len(data)} bytes, {camera.width}x{camera.height} RGB has {expected}",
            field=field,
            reason="IMAGE_WRONG_SIZE",
        )


def _unreadable(data: bytes, field: str) -> InvalidArgument | DataLoss:
    if _END_OF_IMAGE not in data[-1024:]:
        return DataLoss("is a truncated JPEG image", field=field, reason="IMAGE_TRUNCATED")
    return InvalidArgument("cannot be decoded as a JPEG image", field=field, reason="IMAGE_UNREADABLE")
