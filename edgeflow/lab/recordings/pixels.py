"""The pixels of recorded frames, decoded as the service decodes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from edgeflow.lab.recordings.sessions import Images, decode_images
from edgeflow_client.pictures import on_the_wire
from edgeflow_client.recording.records import AnySessionRecord, RecordedObservation, RecordedOpening

LATE_NS = 5_000_000_000
"""How much later than the worker's record the session's record of a frame may lie."""
KEPT_NS = 10_000_000_000
"""How long a frame waits for the worker's record of it."""


class RecordedPixels:
    """Finds the images of frames in a recording's sessions, which are read as far as needed.

    records: of the sessions in order, each frame with its images. Frames are asked for in about that order.
    """

    def __init__(self, records: Iterator[tuple[AnySessionRecord, Images]]) -> None:
        self._records = records
        self._openings: dict[int, RecordedOpening] = {}
        self._frames: dict[tuple[int, int], tuple[int, RecordedOpening | None, Images]] = {}
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
        if len(images) != len(cameras):
            return None
        decoded = decode_images([images[place] for place in places], [cameras[place] for place in places]) or ()
        if [side for image in decoded for side in image.shape[:2]] != list(sizes):
            return None
        return tuple(image.tobytes() for image in decoded)

    def _take(self, record: AnySessionRecord, images: Images) -> None:
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
