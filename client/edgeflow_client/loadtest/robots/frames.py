"""Frames to send, encoded before the run: moving synthetic pictures, or the images of a folder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from edgeflow_client.errors import ConfigError
from edgeflow_client.files import open_regular
from edgeflow_client.types import CameraSpec, ImageFormat

Pixels: TypeAlias = "NDArray[np.uint8]"

SUFFIXES = {".jpg", ".jpeg", ".png"}
MAX_RECORDED_PIXELS = 50_000_000
MAX_TOTAL_BYTES = 1 << 30
JPEG_QUALITY = 90
_BLOBS = 12
_NOISE = 6.0  # standard deviation: the bytes of a synthetic JPEG are about those of a camera's


def frames_for(cameras: Sequence[CameraSpec], folder: Path | None, distinct: int, seed: int) -> list[tuple[bytes, ...]]:
    """Encoded frames, one image per camera: one per image in the folder, or `distinct` synthetic ones.

    ConfigError when a folder has no images, an image cannot be read, or all together are too large.
    """
    data: list[tuple[bytes, ...]] = []
    total = 0
    for pictures in zip(*_sources(cameras, folder, distinct, seed), strict=True):
        data.append(tuple(encode(pixels, each.format) for pixels, each in zip(pictures, cameras, strict=True)))
        total += sum(map(len, data[-1]))
        if total > MAX_TOTAL_BYTES:
            raise ConfigError(f"frames: more than {MAX_TOTAL_BYTES >> 20} MiB when encoded; take fewer or smaller ones")
    return data


def encode(pixels: Pixels, form: ImageFormat) -> bytes:
    """RGB `[height, width, 3]` uint8 as the bytes to send."""
    if form is ImageFormat.RGB8:
        return pixels.tobytes()
    data: bytes = simplejpeg.encode_jpeg(np.ascontiguousarray(pixels), quality=JPEG_QUALITY, colorspace="RGB")
    return data


def _sources(cameras: Sequence[CameraSpec], folder: Path | None, distinct: int, seed: int) -> list[Iterator[Pixels]]:
    """The pictures of each camera; synthetic ones differ between cameras."""
    if folder is not None:
        return [_recorded(folder, camera) for camera in cameras]
    return [_synthetic(camera, distinct, [seed, *[index] * (index > 0)]) for index, camera in enumerate(cameras)]


def _recorded(folder: Path, camera: CameraSpec) -> Iterator[Pixels]:
    """The images below a folder in the order of their paths, stretched to the camera's size."""
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)
    if not paths:
        raise ConfigError(f"frames: {folder} has no {', '.join(sorted(SUFFIXES))} files")
    for path in paths:
        try:
            with open_regular(path) as file, Image.open(file) as image:
                if image.width * image.height > MAX_RECORDED_PIXELS:
                    raise ConfigError(f"frames: {path} has more than {MAX_RECORDED_PIXELS} pixels")
                fitted = image.convert("RGB").resize((camera.width, camera.height), Image.Resampling.BILINEAR)
        except (UnidentifiedImageError, OSError, SyntaxError):
            raise ConfigError(f"frames: {path} is not an image that can be read") from None
        yield np.asarray(fitted, dtype=np.uint8)


def _synthetic(camera: CameraSpec, distinct: int, seed: list[int]) -> Iterator[Pixels]:
    """Coloured blobs that move over a gradient, with sensor noise: no two are equal, compression is realistic."""
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[0 : camera.height, 0 : camera.width].astype(np.float32)
    backdrop = np.stack([columns / camera.width, rows / camera.height, 0.5 + 0 * rows], axis=-1) * 120 + 60
    colours = rng.uniform(0, 255, (_BLOBS, 3)).astype(np.float32)
    starts, steps = rng.uniform(0, 1, (_BLOBS, 2)), rng.normal(0, 0.02, (_BLOBS, 2))
    radii = rng.uniform(0.03, 0.15, _BLOBS) * min(camera.height, camera.width)
    for index in range(distinct):
        picture = backdrop.copy()
        places = (starts + index * steps) % 1.0 * (camera.height, camera.width)
        for (row, column), radius, colour in zip(places, radii, colours, strict=True):
            picture[(rows - row) ** 2 + (columns - column) ** 2 < radius**2] = colour
        picture += rng.normal(0, _NOISE, picture.shape[:2])[..., None]
        yield picture.clip(0, 255).astype(np.uint8)
