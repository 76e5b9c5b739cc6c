"""Records for the tests of recordings, and a recorder in a thread of the test's own process."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from edgeflow_client.recording.process import RecorderProcess
from edgeflow_client.recording.reader import Recording
from edgeflow_client.recording.recorder import RecorderJob, RecorderSettings, wall_clock
from edgeflow_client.recording.records import (
    ENCODER,
    TOPIC,
    AnySessionRecord,
    RecordedAnswer,
    RecordedClosing,
    RecordedObservation,
    RecordedOpening,
    session_schema,
)
from edgeflow_client.recording.ring import RecordRing, memory_file
from edgeflow_client.types import ActionSchema, CameraSpec, ImageFormat, StateSpec

PASSES = "/edgeflow/passes"
SCHEMAS = {TOPIC: session_schema(), PASSES: b'{"type": "object"}'}
CAMERAS = (CameraSpec("wrist", 4, 2, ImageFormat.RGB8), CameraSpec("top", 8, 8, ImageFormat.JPEG))
RAW, JPEG = bytes(range(24)), b"\xff\xd8 not looked at"
SCHEMA = ActionSchema(
    names=("x", "y", "z", "roll", "pitch", "yaw", "grip"),
    units=("m",) * 3 + ("rad",) * 3 + ("",),
    low=(-1.0,) * 7,
    high=(1.0,) * 7,
    relative=(False,) * 7,
)
STATE = StateSpec(name="arm", size=2, elements=("shoulder", "elbow"))
_wall_ns = wall_clock(RecordRing.make(1))


def now_ns() -> int:
    """Nanoseconds since 1970, each greater than the one before."""
    return _wall_ns(time.monotonic_ns())


def opening(session: int = 1, cameras: Sequence[CameraSpec] = CAMERAS) -> RecordedOpening:
    """A session that opens."""
    return RecordedOpening(
        session=session, time_ns=now_ns(), source="robot", cameras=tuple(cameras), state=(STATE,), schema=SCHEMA
    )


def frame(seq: int, session: int = 1, images: Sequence[bytes] = (RAW, JPEG)) -> RecordedObservation:
    """A frame; its images are put beside it."""
    sizes = tuple(map(len, images))
    state = (seq + 0.1, 1 / 3)
    return RecordedObservation(session=session, time_ns=now_ns(), seq=seq, stamp_ns=seq, image_bytes=sizes, state=state)


def answer(seq: int, session: int = 1) -> RecordedAnswer:
    """An answer."""
    return RecordedAnswer(session=session, time_ns=now_ns(), seq=seq, values=(0.1, 0.2, 0.3, 0.0, 0.0, 0.5, 1.0))


def closing(session: int = 1) -> RecordedClosing:
    """A session that closes."""
    return RecordedClosing(session=session, time_ns=now_ns())


def put(ring: RecordRing, record: AnySessionRecord, images: Sequence[bytes] = (RAW, JPEG)) -> bool:
    """Put a record into a ring, a frame with its images."""
    return ring.put(ENCODER.encode(record), images if isinstance(record, RecordedObservation) else ())


def recorded(directory: Path) -> list[tuple[AnySessionRecord, tuple[bytes, ...]]]:
    """The session records of the newest run in a directory."""
    return list(Recording.open(directory).sessions())


class OwnRecorder:
    """A recorder whose process is here: its steps are taken by hand."""

    def __init__(self, directory: Path, run: str = "0123abcd", **settings: Any) -> None:
        settings = {"directory": str(directory), "buffer_bytes": 1 << 20, "least_free_bytes": 0} | settings
        self._settings = RecorderSettings(**settings)
        self.rings = {topic: RecordRing.make(self._settings.buffer_bytes) for topic in SCHEMAS}
        self._job = RecorderJob(
            settings=self._settings,
            parent=os.getpid(),
            run=run,
            rings={topic: ring.descriptor for topic, ring in self.rings.items()},
            schemas={topic: msgspec.Raw(schema) for topic, schema in SCHEMAS.items()},
            kept=(memory_file(), memory_file()),
        )
        self._killed: list[RecorderProcess] = []  # kept until the end: garbage is closed properly
        self.process = RecorderProcess(self._job)

    def kill(self) -> None:
        """Kill its process, which has a successor."""
        self._killed.append(self.process)
        self.process = RecorderProcess(self._job)

    def put(self, record: AnySessionRecord, images: Sequence[bytes] = (RAW, JPEG)) -> bool:
        """Put a session record into its ring."""
        return put(self.rings[TOPIC], record, images)

    def write(self) -> None:
        """Write everything that was put."""
        while self.process.step() + self.process.step():  # a look takes what the one before saw
            pass
        self.process.flush()

    def close(self) -> None:
        """Write everything and end the process."""
        self.write()
        self.process.close()
