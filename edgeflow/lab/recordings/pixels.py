"""The pixels of recorded frames, decoded as the service decodes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np
import simplejpeg

from edgeflow.contract import CHANNELS
from edgeflow_client.pictures import on_the_wire
from edgeflow_client.recording.records import AnySessionRecord, RecordedObservation, RecordedOpening
from edgeflow_client.types import CameraSpec, ImageFormat

LATE_NS = 5_000_000_000
"""How much later than the worker's record the session's record of a frame may lie."""
KEPT_NS = 10_000_000_000
"""How long a frame waits for the worker's record of it."""
Encoded: TypeAlias = tuple[bytes, ...]


class RecordedPixels:
    """Finds the images of frames in a recording's sessions, which are read as far as needed.

    records: of the sessions in order, each frame with its images. Frames are asked for in about that order.
    """

    def __init__(self, records: Iterator[tuple[AnySessionRecord, Encoded]]) -> None:
        self._records = records
        self._openings: dict[int, RecordedOpening] = {}
        self._frames: dict[tuple[int, int], tuple[int, RecordedOpening | None, Encoded]] = {}
        self._read_ns = 0

    def find(self, session: int, seq: int, sizes: Sequence[int], time_ns: int) -> tuple[bytes, ...] | None:
        """The decoded images of a frame [height * width * 3 bytes each], in the policy's order; None if they are not in
        the recording, or have other sizes.

        sizes: height and width of each image, flattened. time_ns: of the worker's record.
        """
        while (session, seq) not in self._frames and self._read_ns < time_ns + LATE_NS:
            record = next(self._records, None)
            if record is None:
                self._read_ns = time_ns + LATE_NS
                break
            self._take(*record)
        _, opening, images = self._frames.pop((session, seq), (0, None, ()))
        self._forget(time_ns - KEPT_NS)
        if opening is None or not images:
            return None
        names = [camera.name for camera in opening.cameras]
        cameras = on_the_wire(opening.cameras)
        places = [names.index(name) for name in opening.policy_cameras if name in names]
        if len(places) * 2 != len(sizes) or len(images) != len(cameras):
            return None
        decoded = [_decoded(images[place], cameras[place]) for place in places]
        wanted = [(height, width, CHANNELS) for height, width in zip(sizes[::2], sizes[1::2], strict=True)]
        if any(image is None or image.size != np.prod(shape) for image, shape in zip(decoded, wanted, strict=True)):
            return None
        return tuple(image.tobytes() for image in decoded if image is not None)

    def _take(self, record: AnySessionRecord, images: Encoded) -> None:
        self._read_ns = max(self._read_ns, record.time_ns)
        if isinstance(record, RecordedOpening):
            self._openings[record.session] = record
        elif isinstance(record, RecordedObservation):
            opening = self._openings.get(record.session)
            self._frames[record.session, record.seq] = record.time_ns, opening, images

    def _forget(self, before_ns: int) -> None:
        """Forget frames that the worker never had."""
        while self._frames:
            oldest = next(iter(self._frames))
            if self._frames[oldest][0] >= before_ns:
                return
            del self._frames[oldest]


def _decoded(image: bytes, camera: CameraSpec) -> np.ndarray | None:
    if camera.format is ImageFormat.RGB8:
        return np.frombuffer(image, np.uint8)
    try:
        pixels: np.ndarray = simplejpeg.decode_jpeg(image, colorspace="RGB")  # as service/observation/pixels.py
    except ValueError:
        return None
    return pixels
