"""Encoding of an observation for the wire: camera images and proprioceptive state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from edgeflow_client.errors import InvalidArgument
from edgeflow_client.types import CameraSpec, ImageFormat, StateSpec

Image: TypeAlias = "bytes | NDArray[np.uint8]"
Images: TypeAlias = "Image | Mapping[str, Image]"
Numbers: TypeAlias = "Sequence[float] | NDArray[Any]"
State: TypeAlias = Mapping[str, Numbers]


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
    """Advice for images of a known library, without importing it."""
    if camera.format is ImageFormat.JPEG:
        return "the camera was opened as JPEG: pass the encoded bytes"
    array = f"a uint8 array [{camera.height}, {camera.width}, 3], or its bytes"
    library = type(image).__module__.partition(".")[0]
    if library == "PIL":
        return f"pass {array}: numpy.asarray(image.convert('RGB'))"
    if library == "torch":
        return f"pass {array}: image.cpu().numpy(), channels last, 0 to 255"
    return f"pass {array}"


def encode_state(state: State | None, proprio: Sequence[float], specs: Sequence[StateSpec]) -> Sequence[float]:
    """The values of all vectors in the order of `specs`.

    state: vectors by name. proprio: these numbers themselves, instead. InvalidArgument names the vector at fault and
    what is expected; every number must be finite as float32.
    """
    if state is None:
        return _flat(proprio, specs)
    if not isinstance(cast("object", state), Mapping):
        named = ", ".join(f"{spec.name!r}: [{spec.size} numbers]" for spec in specs)
        raise InvalidArgument(f"must be a dict {{{named}}}, got {type(state).__name__}", field="state")
    if len(proprio):
        raise InvalidArgument("give the state by name or as proprio, not both", field="state")
    names = [spec.name for spec in specs]
    if set(state) != set(names):
        raise InvalidArgument(
            f"has {sorted(state, key=str)}; the session was opened with {sorted(names)}", field="state"
        )
    return [number for spec in specs for number in _vector(state[spec.name], spec)]


def _flat(proprio: Sequence[float], specs: Sequence[StateSpec]) -> Sequence[float]:
    if isinstance(proprio, str | bytes) or not isinstance(proprio, Sequence | np.ndarray):
        raise InvalidArgument(
            f"must be a list or a numpy array of numbers, got {type(proprio).__name__}", field="proprio"
        )
    agreed = sum(spec.size for spec in specs)
    if len(proprio) != agreed:
        sizes = ", ".join(f"{spec.name!r} of {spec.size}" for spec in specs) or "no state"
        raise InvalidArgument(
            f"has {len(proprio)} values; the session was opened with {agreed}: {sizes}", field="proprio"
        )
    start = 0
    for spec in specs:
        _vector(proprio[start : start + spec.size], spec)
        start += spec.size
    return proprio


def _vector(values: Numbers, spec: StateSpec) -> list[float]:
    field = f"state[{spec.name!r}]"
    try:
        given = np.asarray(values)
    except (TypeError, ValueError, RuntimeError):  # ragged, or an array of another library on its own device
        given = np.array(None)
    if given.dtype.kind not in "bfiu":
        raise InvalidArgument(f"must be {spec.size} numbers, got {type(values).__name__} {values!r:.80}", field=field)
    with np.errstate(over="ignore"):
        numbers = given.astype(np.float32)
    if numbers.shape != (spec.size,):
        raise InvalidArgument(
            f"has shape {list(numbers.shape)}; the session was opened with [{spec.size}]", field=field
        )
    wrong = np.flatnonzero(~np.isfinite(numbers))
    if wrong.size:
        raise InvalidArgument(f"has {values[wrong[0]]!r} at {wrong[0]}; it must be a finite float32", field=field)
    return [float(number) for number in numbers]
