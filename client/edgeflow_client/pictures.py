"""Camera images on the wire: shrunk, and encoded as JPEG.

A picture is shrunk and encoded in the thread that sends it, and only if it is sent: pictures that a newer one replaces
cost nothing, and `push` copies pixels, no more.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from edgeflow_client.errors import DependencyError, InvalidArgument
from edgeflow_client.types import CameraSpec, ImageFormat

MOST_QUALITY = 100
SUBSAMPLING = "420"  # of colours, as cameras encode
_INSTALL = "install edgeflow-client with its extra `images`"
_log = logging.getLogger("edgeflow_client")


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    """An RGB image that is shrunk or encoded before it is sent."""

    pixels: bytes
    """height*width*3 bytes, row by row."""
    camera: CameraSpec
    size: tuple[int, int] | None = None
    """Width and height to shrink it to; None = as it is."""

    def encoded(self) -> bytes:
        """The bytes to send."""
        camera = self.camera
        pixels = np.frombuffer(self.pixels, np.uint8).reshape(camera.height, camera.width, 3)
        if self.size not in (None, (camera.width, camera.height)):
            images = _resizer()
            pixels = np.asarray(images.fromarray(pixels).resize(self.size, images.Resampling.BILINEAR))
        if camera.send is not ImageFormat.JPEG:
            return pixels.tobytes()
        data: bytes = _encoder().encode_jpeg(
            pixels, quality=camera.quality, colorspace="RGB", colorsubsampling=SUBSAMPLING
        )
        return data


def shrunk(image: bytes | Picture, sizes: Mapping[str, tuple[int, int]]) -> bytes | Picture:
    """An image, to be shrunk to its camera's size among these."""
    return replace(image, size=sizes.get(image.camera.name)) if isinstance(image, Picture) else image


def resolved(cameras: Sequence[CameraSpec], *, local: bool) -> tuple[CameraSpec, ...]:
    """The cameras with what is sent of each. local: the service is on this machine.

    InvalidArgument names the field of a camera that cannot be sent so, DependencyError a package that is needed.
    """
    return tuple(_resolved(camera, f"cameras[{index}]", local) for index, camera in enumerate(cameras))


def on_the_wire(cameras: Sequence[CameraSpec]) -> tuple[CameraSpec, ...]:
    """The cameras as the service sees them."""
    return tuple(replace(camera, format=camera.send or camera.format) for camera in cameras)


def to_send(images: Sequence[bytes], cameras: Sequence[CameraSpec]) -> list[bytes | Picture]:
    """The images of a frame as they are sent."""
    return [
        Picture(image, camera) if camera.resize or camera.send is not camera.format else image
        for image, camera in zip(images, cameras, strict=True)
    ]


def _resolved(camera: CameraSpec, field: str, local: bool) -> CameraSpec:
    if not isinstance(camera, CameraSpec) or camera.format not in tuple(ImageFormat):
        return camera  # rejected where all settings are
    if type(camera.quality) is not int or not 1 <= camera.quality <= MOST_QUALITY:
        raise InvalidArgument(
            f"must be an integer from 1 to {MOST_QUALITY}, got {camera.quality!r}", field=f"{field}.quality"
        )
    if type(camera.resize) is not bool:
        raise InvalidArgument(f"must be true or false, got {camera.resize!r}", field=f"{field}.resize")
    if camera.resize:
        if camera.format is not ImageFormat.RGB8:
            raise InvalidArgument("needs RGB8 images", field=f"{field}.resize")
        _resizer()
    if camera.format is ImageFormat.JPEG:
        if camera.send not in (None, ImageFormat.JPEG):
            raise InvalidArgument("must be jpeg or unset: the images are JPEG already", field=f"{field}.send")
        return replace(camera, send=ImageFormat.JPEG)
    if camera.send is not None:
        return replace(camera, send=_asked(camera.send, field))
    if local or not _can_encode(camera):
        return replace(camera, send=ImageFormat.RGB8)
    return replace(camera, send=ImageFormat.JPEG)


def _asked(send: object, field: str) -> ImageFormat:
    try:
        asked = ImageFormat(send)
    except ValueError:
        raise InvalidArgument(f"must be jpeg, rgb8 or unset, got {send!r}", field=f"{field}.send") from None
    if asked is ImageFormat.JPEG:
        _encoder()
    return asked


def _can_encode(camera: CameraSpec) -> bool:
    """True if JPEG can be encoded; the log says once per client what is missing."""
    try:
        _encoder()
    except DependencyError:
        _log.warning(
            "images of camera %r are sent as they are: for JPEG, which takes a tenth of the network, %s",
            camera.name,
            _INSTALL,
        )
        return False
    return True


def _encoder() -> Any:
    """The library that encodes JPEG; DependencyError if it is not installed."""
    try:
        import simplejpeg
    except ImportError:
        raise DependencyError(f"cameras: to send JPEG, {_INSTALL}, or declare send=ImageFormat.RGB8") from None
    return simplejpeg


def _resizer() -> Any:
    """The module that resizes images; DependencyError if it is not installed."""
    try:
        from PIL import Image
    except ImportError:
        raise DependencyError(f"cameras: to resize images, {_INSTALL}, or leave resize unset") from None
    return Image
