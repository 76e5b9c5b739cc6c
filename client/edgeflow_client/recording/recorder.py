"""Recording from the side of its producers: rings in memory, and a separate process that writes their records.

Producers put records into a ring and never wait. The recorder process (`process.py`) takes them out, and is replaced
if it ends (`supervision.py`). It goes on for as long as it takes to write what is left when its parent dies.
"""

from __future__ import annotations

import importlib.util
import os
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from errno import EDQUOT, ENOSPC
from pathlib import Path

import msgspec

from edgeflow_client.errors import ConfigError, DependencyError
from edgeflow_client.recording.records import TOPIC
from edgeflow_client.recording.ring import RecordRing
from edgeflow_client.recording.supervision import RecorderNews, RingProcess

CAMERA_CHOICES = ("none", "thumbnails", "all")
PROCESS = "edgeflow_client.recording.process"


class RecorderSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a recording."""

    directory: str = ""
    """Directory of the files; "" = none, only live."""
    live_port: int | None = None
    """Port of Foxglove's websocket on the loopback interface; 0 = any free one, None = no socket."""
    cameras: str = "all"
    """Recorded images: "none", "thumbnails" or "all"."""
    source: str = "service"
    """Who records: "service" or "robot"."""
    facts: dict[str, str] = {}
    """Further facts for each file's metadata."""
    budget_bytes: int = 20 << 30
    """Largest size of all recordings in the directory; the oldest files are deleted."""
    least_free_bytes: int = 1 << 30
    """Free space that is left on the disk."""
    rotate_bytes: int = 1 << 30
    """Size after which a new file begins."""
    rotate_s: float = 600.0
    """Seconds after which a new file begins."""
    buffer_bytes: int = 64 << 20
    """Memory for records of sessions that are not written yet. Rings of other topics, which have no images, take a
    quarter of it.
    """


class RecorderJob(msgspec.Struct, frozen=True, kw_only=True):
    """The work of the recorder process."""

    settings: RecorderSettings
    parent: int
    """Process id of its parent."""
    run: str
    """Hexadecimal name of the run, in the names of its files."""
    rings: dict[str, int]
    """Descriptor of each topic's ring."""
    schemas: dict[str, msgspec.Raw]
    """JSON schema of each topic's records."""
    kept: tuple[int, int]
    """Descriptors of the kept records (`kept.py`)."""


class Recorder(RingProcess):
    """A ring per topic and the process that writes them."""

    def __init__(
        self, settings: RecorderSettings, schemas: Mapping[str, bytes], tell: Callable[[RecorderNews], None]
    ) -> None:
        """Make the rings and check the directory.

        schemas: JSON schema of each topic's records. tell: called from the recorder's thread, and from `stop`.
        ConfigError for settings that cannot be, DependencyError without the extra `record`, OSError without memory.
        """
        check_recorder(settings)
        bytes_of = {TOPIC: settings.buffer_bytes}
        rings = {topic: RecordRing.make(bytes_of.get(topic, settings.buffer_bytes // 4)) for topic in schemas}
        super().__init__(PROCESS, rings, tell)
        self.run = os.urandom(4).hex()
        self._give(
            RecorderJob(
                settings=settings,
                parent=os.getpid(),
                run=self.run,
                rings={topic: ring.descriptor for topic, ring in rings.items()},
                schemas={topic: msgspec.Raw(schema) for topic, schema in schemas.items()},
                kept=self._kept,
            )
        )
        self._failing = False

    def _take(self, news: RecorderNews) -> None:
        if news.kind == "file" and self._failing:  # by a process after that which failed
            news = replace(news, kind="recovered")
        if news.kind in ("failing", "recovered"):
            self._failing = news.kind == "failing"
        super()._take(news)


def check_recorder(settings: RecorderSettings) -> None:
    """ConfigError for settings that cannot be, DependencyError without the extra `record`."""
    if importlib.util.find_spec("foxglove") is None:
        raise DependencyError("recording needs foxglove-sdk: install edgeflow-client with its extra `record`")
    if settings.cameras not in CAMERA_CHOICES:
        raise ConfigError(
            f"cameras of a recording: must be one of {', '.join(CAMERA_CHOICES)}, got {settings.cameras!r}"
        )
    if not settings.directory and settings.live_port is None:
        raise ConfigError("a recording needs a directory or a port")
    if not settings.directory:
        return
    directory = Path(settings.directory)
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        if error.errno in (ENOSPC, EDQUOT):
            return  # robots go first: the service starts, and recording when there is room
        raise ConfigError(
            f"cannot record to {str(directory)!r}: {error.strerror or error}; name a directory that can be written"
        ) from None


def wall_clock(ring: RecordRing) -> Callable[[int], int]:
    """A function from monotonic nanoseconds to nanoseconds since 1970, each greater than the one before.

    The offset is that of the ring: when the system's clock is set, the times of a recording go on.
    """
    offset_ns = ring.epoch_ns
    lock, last_ns = threading.Lock(), 0

    def wall_ns(monotonic_ns: int) -> int:
        nonlocal last_ns
        with lock:
            last_ns = max(monotonic_ns + offset_ns, last_ns + 1)
            return last_ns

    return wall_ns
