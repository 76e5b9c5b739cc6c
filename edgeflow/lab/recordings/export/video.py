"""Videos of a dataset: an mp4 per camera with many episodes one after the other, as LeRobot reads them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
from av.error import FFmpegError

from edgeflow.lab.recordings.sessions import Pixels
from edgeflow_client.errors import ConfigError, DependencyError

PIXELS = "yuv420p"


@dataclass(frozen=True, slots=True)
class VideoCodec:
    """An encoder and its settings; every second frame is a key frame, for random access."""

    encoder: str
    name: str
    """As readers call the format."""
    options: dict[str, int]


CODECS = (
    VideoCodec("libsvtav1", "av1", {"g": 2, "crf": 30, "preset": 10}),
    VideoCodec("libx264", "h264", {"g": 2, "crf": 23}),
)
"""The codecs to choose from, the first one that PyAV has: LeRobot's own with its settings, then the widest known.

Preset 12, as LeRobot 0.6 has it, spoils every second frame with SVT-AV1 4.1: PSNR 26 dB instead of 42.
"""


def best_codec() -> VideoCodec:
    """The codec to use; DependencyError if PyAV lacks the encoders."""
    os.environ.setdefault("SVT_LOG", "1")  # otherwise the encoder of AV1 writes its settings to stderr
    for codec in CODECS:
        if codec.encoder in av.codec.codecs_available:
            return codec
    encoders = " nor ".join(codec.encoder for codec in CODECS)
    raise DependencyError(f"video: this build of av has neither {encoders}; install av from PyPI, or omit --video")


def check_size(camera: str, width: int, height: int) -> None:
    """Raise ConfigError for a size that these codecs do not take."""
    if width % 2 or height % 2:
        raise ConfigError(f"video: {camera} is {width}x{height}, and videos need even sizes; omit --video")


def video_facts(codec: VideoCodec, width: int, height: int, fps: int) -> dict[str, Any]:
    """The facts of a video that LeRobot keeps with its feature."""
    return {
        "video.height": height,
        "video.width": width,
        "video.codec": codec.name,
        "video.pix_fmt": PIXELS,
        "video.fps": fps,
        "video.channels": 3,
        "has_audio": False,
        **{f"video.{option}": value for option, value in codec.options.items()},
        "is_depth_map": False,
    }


class VideoFile:
    """An mp4 in the making. Each image is one frame, 1 / fps seconds long; none is held here.

    width, height: pixels, both even.
    """

    def __init__(self, path: Path, *, codec: VideoCodec, width: int, height: int, fps: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._fps = fps
        self.frames = 0
        """Frames so far."""
        self.size_bytes = 0
        """Bytes so far; the encoder holds back some frames."""
        with self._naming_errors():
            self._container = av.open(str(path), "w", format="mp4")
            options = {option: str(value) for option, value in codec.options.items()}
            self._container.add_stream(codec.encoder, rate=fps, options=options)
        stream = self._container.streams.video[0]
        stream.width, stream.height, stream.pix_fmt = width, height, PIXELS
        stream.codec_context.time_base = Fraction(1, fps)
        self._stream = stream

    @property
    def seconds(self) -> float:
        """Its length so far."""
        return self.frames / self._fps

    def add(self, image: Pixels) -> None:
        """Encode an image [height, width, 3]."""
        frame = av.VideoFrame.from_ndarray(image, format="rgb24")
        frame.pts, frame.time_base = self.frames, Fraction(1, self._fps)
        self._encode(frame)
        self.frames += 1

    def close(self) -> None:
        """Write what the encoder held back, and the index."""
        self._encode(None)
        with self._naming_errors():
            self._container.close()

    def _encode(self, frame: av.VideoFrame | None) -> None:
        with self._naming_errors():
            packets = self._stream.encode(frame)
            self._container.mux(packets)
        self.size_bytes += sum(packet.size for packet in packets)

    @contextmanager
    def _naming_errors(self) -> Iterator[None]:
        try:
            yield
        except FFmpegError as error:
            raise ConfigError(f"out: {self._path} cannot be written: {error.strerror}") from None
