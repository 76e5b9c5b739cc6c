"""A process that reads rings of records: watched and replaced from the side of its parent, and run in its own.

The parent's side is `RingProcess`, the process's side `run_reader`. What was put into a ring and not released waits
there for the next process.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol, TypeVar, cast

import msgspec

from edgeflow_client.recording.ring import RecordRing, memory_file

LOOK_S = 1.0  # between looks at what was lost
TELL_LOST_S = 10.0
FIRST_WAIT_S, LONGEST_WAIT_S = 0.2, 5.0  # before a process is replaced
READ_S = 0.02  # between looks into the rings
ENDED = "ended"  # kind of the news why the process ends, which becomes part of "restarted"
NICENESS = 10
OOM_SCORE = 1000  # killed first when memory runs out: the next process finds the records in their rings


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


class RingProcess:
    """Rings and the process that reads them. Threads: one, which watches the process and replaces it."""

    def __init__(
        self,
        module: str,
        rings: Mapping[str, RecordRing],
        tell: Callable[[RecorderNews], None],
        *,
        name: str = "recorder",
    ) -> None:
        """Give it its job (`_give`), then `start`.

        module: what the process runs, a `main` of `run_reader`. rings: by topic; they become this object's. tell:
        called from its thread, and from `stop`. name: of the thread, and of the process in texts.
        """
        self._module = module
        self._rings = dict(rings)
        self._tell = tell
        self._name = name
        self._memory = [memory_file() for _ in range(3)]  # the job, and two for kept records
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._watch, name=name, daemon=True)
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._stop_until = 0.0
        self._error = ""
        self._lost_by_process = self._told_lost = 0
        self._told_lost_at = -TELL_LOST_S

    @property
    def _kept(self) -> tuple[int, int]:
        """Descriptors of the kept records (`kept.py`)."""
        return self._memory[1], self._memory[2]

    def _give(self, job: msgspec.Struct) -> None:
        """Write the job for the process."""
        os.pwrite(self._memory[0], msgspec.json.encode(job), 0)

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
        """Have everything read that was put, and end the process, which is killed after the timeout."""
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
            self._tell(RecorderNews("restarted", f"the {self._name} process {ended}; it starts again in {wait_s:g} s"))
            self._stopping.wait(wait_s)
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)

    def _run_process(self) -> str:
        """Run a process to its end; what ended it, "" if that was `stop`."""
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", self._module, str(self._memory[0])],
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
        """Pass on news of the process."""
        if news.kind == ENDED:
            self._error = news.text
        else:
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


class ReaderJob(Protocol):
    """The work of a process: a struct that `_give` wrote."""

    @property
    def parent(self) -> int:
        """Process id of its parent."""
        ...


class RingReader(Protocol):
    """The work of a process."""

    def step(self) -> object:
        """Take what is in the rings."""
        ...

    def close(self) -> None:
        """The process ends: finish."""
        ...


Job = TypeVar("Job", bound=ReaderJob)


def run_reader(kind: type[Job], make: Callable[[Job], RingReader]) -> int:
    """Read rings until the parent says or dies; the exit code. make: makes the reader of a job of this kind."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # its parent ends it
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core dump would contain frames
    os.set_blocking(1, False)
    with contextlib.suppress(AttributeError, OSError):
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))  # its parent may have a real-time priority
    os.nice(NICENESS)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE))
    descriptor = int(sys.argv[1])
    job = msgspec.json.decode(os.pread(descriptor, os.fstat(descriptor).st_size, 0), type=kind)
    try:
        reader = make(job)
        while os.getppid() == job.parent and not select.select([0], [], [], READ_S)[0]:
            reader.step()
        reader.close()
    except Exception as error:  # the parent starts another process
        tell(RecorderNews(ENDED, f"failed: {type(error).__name__}: {error}"))
        return 1
    return 0


def tell(news: RecorderNews) -> None:
    """Write news to standard output; nobody waits for a reader."""
    with contextlib.suppress(OSError):
        os.write(1, msgspec.json.encode(news) + b"\n")
