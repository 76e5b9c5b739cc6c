"""The pixels of a frame: its checksum is verified, and the policy's cameras are decoded. Slow, thread-safe."""

from __future__ import annotations

from itertools import accumulate

from edgeflow.contract import CHANNELS
from edgeflow.ipc.framing import Payload
from edgeflow.service.images.crc32c import crc32c
from edgeflow.service.images.images import decode_jpeg
from edgeflow.service.observation.requests import CheckedFrame, OpenRequest
from edgeflow_client.errors import DataLoss
from edgeflow_client.reasons import Reason
from edgeflow_client.types import CameraSpec, ImageFormat


def raw_pixels(frame: CheckedFrame, opened: OpenRequest) -> tuple[Payload, ...] | None:
    """The pixels of a frame without a checksum, of which the policy takes raw images alone; None for other frames."""
    if frame.crc32c is not None or any(camera.format is not ImageFormat.RGB8 for camera in opened.policy_cameras):
        return None
    return decode_frame(frame, opened)


def decode_frame(frame: CheckedFrame, opened: OpenRequest) -> tuple[Payload, ...]:
    """height*width*3 RGB bytes of each of the policy's cameras; raw images are passed on as they came."""
    _check_sum(frame)
    return tuple(_pixels(frame, opened, camera) for camera in opened.policy_cameras)


def decode_frame_into(memory: memoryview, frame: CheckedFrame, opened: OpenRequest) -> None:
    """Write the same, one image after the other, into memory of `frame_bytes`."""
    _check_sum(frame)
    for camera, part in zip(opened.policy_cameras, images_of(memory, opened), strict=True):
        _write(part, frame, opened, camera)


def images_of(memory: memoryview, opened: OpenRequest) -> tuple[memoryview, ...]:
    """The images in such memory, one per camera of the policy."""
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
