"""Encoding of camera images for the wire."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgeflow_client.errors import InvalidArgument
from edgeflow_client.types import CameraSpec, ImageFormat

Image: TypeAlias = "bytes | NDArray[np.uint8]"
Images: TypeAlias = "Image | Mapping[str, Image]"


def encode_images(images: Images, cameras: Sequence[CameraSpec]) -> list[bytes]:
    """The bytes of each camera's image, in the order of `cameras`; copies, so that the caller may reuse its buffers.

    images: by camera name, or the image itself if there is one camera. JPEG is given as bytes; RGB8 as a
    [height, width, 3] uint8 array or as bytes of that size. InvalidArgument names the camera and what is expected.
    """
    if not isinstance(images, Mapping):
        if len(cameras) != 1:
            raise InvalidArgument(
                f"give the images by camera name: the session has {len(cameras)} cameras", field="images"
            )
        images = {cameras[0].name: images}
    names = [camera.name for camera in cameras]
    if set(images) != set(names):
        raise InvalidArgument(
            f"has cameras {sorted(images, key=str)}; the session was opened with {sorted(names)}", field="images"
        )
    return [_encode(images[camera.name], camera) for camera in cameras]


def _encode(image: Image, camera: CameraSpec) -> bytes:
    field = f"images[{camera.name!r}]"
    if isinstance(image, np.ndarray):
        return _raw(image, camera, field)
    if not isinstance(image, bytes | bytearray | memoryview):
        raise InvalidArgument(f"has type {_described(image)}; {_wanted(image, camera)}", field=field)
    data = bytes(image)
    expected = camera.height * camera.width * 3
    if camera.format is ImageFormat.RGB8 and len(data) != expected:
        raise InvalidArgument(f"has {len(data)} bytes; RGB8 of this size takes {expected}", field=field)
    return data


def _raw(image: NDArray[np.uint8], camera: CameraSpec, field: str) -> bytes:
    if camera.format is not ImageFormat.RGB8:
        raise InvalidArgument("is an array, but the camera was opened as JPEG: pass the encoded bytes", field=field)
    shape = (camera.height, camera.width, 3)
    if image.dtype != np.uint8 or image.shape != shape:
        raise InvalidArgument(f"is {image.dtype} {list(image.shape)}; expected is uint8 {list(shape)}", field=field)
    return image.tobytes()


def _described(image: object) -> str:
    kind = type(image)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _wanted(image: object, camera: CameraSpec) -> str:
    """Advice by the library that the image is of; nothing is imported for it."""
    if camera.format is ImageFormat.JPEG:
        return "the camera was opened as JPEG: pass the encoded bytes"
    array = f"a uint8 array [{camera.height}, {camera.width}, 3], or its bytes"
    library = type(image).__module__.partition(".")[0]
    if library == "PIL":
        return f"pass {array}: numpy.asarray(image.convert('RGB'))"
    if library == "torch":
        return f"pass {array}: image.cpu().numpy(), channels last, 0 to 255"
    return f"pass {array}"
