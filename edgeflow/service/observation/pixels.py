"""The pixels of a frame: headers are checked against the session, the checksum is verified, and cameras are decoded.

Decoding is slow, and thread-safe.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import google_crc32c
import numpy as np
import simplejpeg
from numpy.typing import NDArray

from edgeflow.contract import CHANNELS
from edgeflow.ipc.framing import Payload
from edgeflow.service.observation.jpeg import UPRIGHT, read_jpeg
from edgeflow.service.observation.requests import CheckedFrame, OpenRequest
from edgeflow_client.errors import DataLoss, InvalidArgument
from edgeflow_client.reasons import Reason
from edgeflow_client.types import CameraSpec, ImageFormat

Pixels = NDArray[np.uint8]
STEP_BYTES = 64 << 10  # the library takes only bytes objects: copies of this size stay in the processor's cache


def raw_pixels(frame: CheckedFrame, opened: OpenRequest) -> tuple[Payload, ...] | None:
    """The pixels of a frame that needs no work: without a checksum and with raw images only. None for other frames."""
    if frame.crc32c is not None or any(camera.format is not ImageFormat.RGB8 for camera in opened.policy_cameras):
        return None
    return decode_frame(frame, opened)


def decode_frame(frame: CheckedFrame, opened: OpenRequest) -> tuple[Payload, ...]:
    """height*width*3 RGB bytes of each of the policy's cameras; raw images are passed on as they came."""
    _check_sum(frame)
    return tuple(_pixels(frame, opened, camera) for camera in opened.policy_cameras)


def decode_frame_into(memory: memoryview, frame: CheckedFrame, opened: OpenRequest) -> None:
    """Decode a frame into memory of `frame_bytes`, one image after the other."""
    _check_sum(frame)
    for camera, part in zip(opened.policy_cameras, images_of(memory, opened), strict=True):
        _write(part, frame, opened, camera)


def images_of(memory: memoryview, opened: OpenRequest) -> tuple[memoryview, ...]:
    """The images in memory filled by `decode_frame_into`, one per camera of the policy."""
    sizes = [image_bytes(camera) for camera in opened.policy_cameras]
    return tuple(memory[end - size : end] for size, end in zip(sizes, accumulate(sizes), strict=True))


def frame_bytes(opened: OpenRequest) -> int:
    """Bytes of the pixels of all of the policy's cameras."""
    return sum(map(image_bytes, opened.policy_cameras))


def image_bytes(camera: CameraSpec) -> int:
    """Bytes of a decoded image."""
    return camera.height * camera.width * CHANNELS


def _check_sum(frame: CheckedFrame) -> None:
    if frame.crc32c is not None and crc32c(frame.images) != frame.crc32c:
        raise DataLoss("does not match the images", field="frame.crc32c", reason=Reason.CRC_MISMATCH)


def _pixels(frame: CheckedFrame, opened: OpenRequest, camera: CameraSpec) -> Payload:
    index = opened.cameras.index(camera)
    if camera.format is ImageFormat.RGB8:
        return frame.images[index]
    return decode_jpeg(frame.images[index], camera, _field(index)).reshape(-1).data


def _write(memory: memoryview, frame: CheckedFrame, opened: OpenRequest, camera: CameraSpec) -> None:
    index = opened.cameras.index(camera)
    if camera.format is ImageFormat.RGB8:
        memory[:] = frame.images[index]
    else:
        decode_jpeg(frame.images[index], camera, _field(index), memory)


def _field(index: int) -> str:
    return f"frame.images[{index}].data"


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


def crc32c(parts: Sequence[Payload]) -> int:
    """The checksum of the concatenated parts."""
    state = 0
    for part in parts:
        for begin in range(0, len(part), STEP_BYTES):
            state = google_crc32c.extend(state, bytes(part[begin : begin + STEP_BYTES]))
    return state
