"""Camera images: headers are checked against the session before any pixel is decoded."""

from __future__ import annotations

import numpy as np
import simplejpeg
from numpy.typing import NDArray

from edgeflow.contract import CHANNELS
from edgeflow.ipc.framing import Payload
from edgeflow.service.images.exif import UPRIGHT
from edgeflow.service.images.jpeg import read_jpeg
from edgeflow_client.errors import InvalidArgument
from edgeflow_client.reasons import Reason
from edgeflow_client.types import CameraSpec, ImageFormat

Pixels = NDArray[np.uint8]


def check_image(data: Payload, camera: CameraSpec, field: str) -> None:
    """Check everything about an image that needs no decoding."""
    if not data:
        raise InvalidArgument("is empty", field=field, reason=Reason.IMAGE_EMPTY)
    if camera.format is ImageFormat.RGB8:
        _check_raw(data, camera, field)
        return
    header = read_jpeg(data, field)
    if (header.width, header.height) != (camera.width, camera.height):
        raise InvalidArgument(
            f"is {header.width}x{header.height}; camera {camera.name!r} was opened with {camera.width}x{camera.height}",
            field=field,
            reason=Reason.IMAGE_WRONG_SIZE,
        )
    if header.orientation != UPRIGHT:
        raise InvalidArgument(
            f"has EXIF orientation {header.orientation}; only 1 (upright) is supported, since a policy sees pixels as "
            "they are stored: turn the pixels, or remove the metadata",
            field=field,
            reason=Reason.IMAGE_WRONG_FORMAT,
        )


def decode_jpeg(data: Payload, camera: CameraSpec, field: str, memory: memoryview | None = None) -> Pixels:
    """Decode a JPEG that passed `check_image` to RGB [height, width, 3], without holding the interpreter lock.

    memory: to decode into, of the image's size; None = new memory.
    """
    try:
        pixels: Pixels = simplejpeg.decode_jpeg(data, colorspace="RGB", buffer=memory)
    except ValueError:
        raise InvalidArgument("cannot be decoded", field=field, reason=Reason.IMAGE_UNREADABLE) from None
    if pixels.shape != (camera.height, camera.width, CHANNELS):
        raise InvalidArgument(
            "decodes to a different size than its header declares", field=field, reason=Reason.IMAGE_UNREADABLE
        )
    return pixels


def _check_raw(data: Payload, camera: CameraSpec, field: str) -> None:
    expected = camera.width * camera.height * CHANNELS
    if len(data) != expected:
        raise InvalidArgument(
            f"has {len(data)} bytes; {camera.width}x{camera.height} RGB takes {expected}",
            field=field,
            reason=Reason.IMAGE_WRONG_SIZE,
        )
