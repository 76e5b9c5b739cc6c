"""Recording from the side of its producers: rings in memory, and a separate process that writes their records.

Producers put records into a ring and never wait. The recorder process (`process.py`) takes them out, and is replaced
if it ends. It goes on for as long as it takes to write what is left when its parent dies.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from errno import EDQUOT, ENOSPC
from pathlib import Path
from typing import IO, cast

import msgspec

from edgeflow_client.errors import ConfigError, DependencyError
from edgeflow_client.recording.records import TOPIC
from edgeflow_client.recording.ring import RecordRing, memory_file

CAMERA_CHOICES = ("none", "thumbnails", "all")
LOOK_S = 1.0  # between looks at what was lost
TELL_LOST_S = 10.0
FIRST_WAIT_S, LONGEST_WAIT_S = 0.2, 5.0  # before a process is replaced
ENDED = "ended"  # kind of the news why the process ends, which becomes part of "restarted"
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


@dataclass(frozen=True, slots=True)
class RecorderNews:
    """Something to tell about the recording."""

    kind: str
    """ "file" (a file begins), "deleted", "failing", "recovered", "lost", "restarted" or "live"."""
    text: str
    path: str = ""
    """The file or directory, or the address of the socket; "" of a socket that could not be opened."""
    lost: int = 0
    """Records that were lost so far, where kind is "lost"."""


class Recorder:
    """A ring per topic and the process that writes them. Threads: one, which watches the process."""

    def __init__(
        self, settings: RecorderSettings, schemas: Mapping[str, bytes], tell: Callable[[RecorderNews], None]
    ) -> None:
        """Make the rings and check the directory.

        schemas: JSON schema of each topic's records. tell: called from the recorder's thread, and from `stop`.
        ConfigError for settings that cannot be, DependencyError without the extra `record`, OSError without memory.
        """
        check_recorder(settings)
        self._tell = tell
        bytes_of = {TOPIC: settings.buffer_bytes}
        self._rings = {topic: RecordRing.make(bytes_of.get(topic, settings.buffer_bytes // 4)) for topic in schemas}
        self._memory = [memory_file() for _ in range(3)]  # the job, and two for kept records
        self.run = os.urandom(4).hex()
        job = RecorderJob(
            settings=settings,
            parent=os.getpid(),
            run=self.run,
            rings={topic: ring.descriptor for topic, ring in self._rings.items()},
            schemas={topic: msgspec.Raw(schema) for topic, schema in schemas.items()},
            kept=(self._memory[1], self._memory[2]),
        )
        os.pwrite(self._memory[0], msgspec.json.encode(job), 0)
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._watch, name="recorder", daemon=True)
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._stop_until = 0.0
        self._failing = False
        self._error = ""
        self._lost_by_process = self._told_lost = 0
        self._told_lost_at = -TELL_LOST_S

    def ring(self, topic: str) -> RecordRing:
        """The ring of a topic; its descriptor may be given to another process, which then writes it instead."""
        return self._rings[topic]

    @property
    def lost(self) -> int:
        """Records that were lost: no room in memory, or no file to write them to."""
        return sum(ring.lost for ring in self._rings.values()) + self._lost_by_process

    def start(self) -> None:
        """Start the process, and the thread that watches it and replaces it."""
        self._thread.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        """Write everything that was put, close the file and end the process, which is killed after the timeout."""
        with self._lock:
            stopped = self._stopping.is_set()
            self._stopping.set()
            process = self._process
            if process is not None:
                _say_stop(process)
            self._stop_until = time.monotonic() + timeout_s
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        if self._thread.is_alive() and self._process is not None:
            self._process.kill()
            self._thread.join(LOOK_S)  # and no longer: a dead disk may hold the process for ever
        left = sum(ring.waiting_bytes for ring in self._rings.values())
        if left and not stopped:
            self._tell(RecorderNews("lost", f"{left / 1e6:.1f} MB of records were not written in time", lost=self.lost))
        if not stopped and not self._thread.is_alive():
            for descriptor in self._memory:
                os.close(descriptor)
            for ring in self._rings.values():
                ring.close()

    # The thread.

    def _watch(self) -> None:
        wait_s, last = FIRST_WAIT_S, False
        while not last:
            began = time.monotonic()
            last = self._stopping.is_set()
            ended = self._run_process()
            if last or (self._stopping.is_set() and not ended):
                return
            if self._stopping.is_set() and time.monotonic() < self._stop_until:
                continue  # once more, for what it left in the rings
            if self._stopping.is_set():
                return
            if time.monotonic() - began > LONGEST_WAIT_S:
                wait_s = FIRST_WAIT_S
            self._tell(RecorderNews("restarted", f"the recorder process {ended}; it starts again in {wait_s:g} s"))
            self._stopping.wait(wait_s)
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)

    def _run_process(self) -> str:
        """Run a process to its end; what ended it, "" if that was `stop`."""
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", PROCESS, str(self._memory[0])],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                pass_fds=[*self._memory, *(ring.descriptor for ring in self._rings.values())],
                env=_environment(),
                start_new_session=True,  # signals of the terminal are for its parent
            )
        except OSError as error:
            return f"cannot start: {error.strerror}"
        with process:
            with self._lock:
                self._process = process
                if self._stopping.is_set():
                    _say_stop(process)
            self._listen(cast("IO[bytes]", process.stdout))
            code = process.wait()
        if code == 0 or self._error:
            return self._error or ("" if self._stopping.is_set() else "ended")
        return f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"

    def _listen(self, stream: IO[bytes]) -> None:
        """Pass on news until the process ends."""
        lost_before, rest, self._error = self._lost_by_process, b"", ""
        look = select.poll()  # a service has more descriptors than `select` takes
        look.register(stream)
        while True:
            if look.poll(1000 * LOOK_S):
                data = os.read(stream.fileno(), 1 << 16)
                if not data:
                    break
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    try:
                        news = msgspec.json.decode(line, type=RecorderNews)
                    except msgspec.MsgspecError:
                        continue  # a library wrote it
                    if news.kind == "lost":
                        self._lost_by_process = lost_before + news.lost
                    else:
                        self._take(news)
            self._look_at_lost(TELL_LOST_S)
        self._look_at_lost(0.0)

    def _take(self, news: RecorderNews) -> None:
        if news.kind == ENDED:
            self._error = news.text
            return
        if news.kind == "file" and self._failing:  # by a process after that which failed
            news = replace(news, kind="recovered")
        if news.kind in ("failing", "recovered"):
            self._failing = news.kind == "failing"
        self._tell(news)

    def _look_at_lost(self, pause_s: float) -> None:
        """Tell what was lost, if the last time is so long ago."""
        lost, now = self.lost, time.monotonic()
        if lost > self._told_lost and now - self._told_lost_at >= pause_s:
            self._tell(RecorderNews("lost", f"{lost - self._told_lost} records were lost, {lost} in all", lost=lost))
            self._told_lost, self._told_lost_at = lost, now


def _environment() -> dict[str, str]:
    """The environment in which the process imports what this one does."""
    paths = [path or str(Path.cwd()) for path in sys.path]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1"}


def _say_stop(process: subprocess.Popen[bytes]) -> None:
    """Ask for the end. Closing its input would say nothing while a fork of this process holds the same pipe."""
    with contextlib.suppress(OSError, ValueError):
        cast("IO[bytes]", process.stdin).write(b"stop")


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
