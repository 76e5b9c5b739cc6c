"""The event log: one JSON object per line, without frames, instructions, credentials, payloads or exception texts.

No caller ever waits for it or sees its errors: lines go through a bounded queue, and a thread writes them.
"""

from __future__ import annotations

import json
import os
import secrets
import select
import threading
import time
import traceback
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from edgeflow.clock import Clock

PER_SECOND = 10  # lines per event; further ones are counted in the next line
KEPT_LINES = 1000  # that wait for a slow descriptor; further ones are lost
CLOSE_S = 0.2
RETRY_S = 1.0  # between attempts to report lost lines, when nothing else is written
CLEAR_LINE = "\r\x1b[K"  # a progress bar may be there


class Sink(Protocol):
    """Receiver of lines."""

    def write(self, text: str, /) -> object: ...

    def isatty(self) -> bool: ...


class LineWriter:
    """Writes text to a descriptor from its own thread: `write` never waits and never raises; lost text is counted.

    Enough of a text stream for `rich.Console`. broken: the last attempt to write failed.
    """

    encoding = "utf-8"

    def __init__(self, descriptor: int, wall: Callable[[], float] = time.time) -> None:
        self.broken = False
        self._descriptor = descriptor
        self._wall = wall
        self._queue: SimpleQueue[bytes | None] = SimpleQueue()
        self._unwritten = 0  # counted by the thread
        self._refused = 0  # counted by the callers
        self._lock = threading.RLock()
        self._reported = 0
        self._torn = False
        self._thread = threading.Thread(target=self._run, name="lines", daemon=True)
        self._thread.start()

    @property
    def lost(self) -> int:
        """The number of writes that were lost."""
        return self._refused + self._unwritten

    def write(self, text: str, /) -> int:
        """Queue text; it is lost if too much waits already."""
        self.pass_on(text.encode(errors="backslashreplace"))
        return len(text)

    def pass_on(self, data: bytes) -> None:
        """Queue bytes of any origin."""
        if self._queue.qsize() < KEPT_LINES:
            self._queue.put(data)
        else:
            with self._lock:
                self._refused += 1

    def flush(self) -> None:
        """Do nothing: the thread writes as soon as it can."""

    def isatty(self) -> bool:
        """True if the descriptor is a terminal."""
        return os.isatty(self._descriptor)

    def close(self, timeout_s: float = CLOSE_S) -> bool:
        """Wait until all is written, but no longer than this; True if it was. Later text is lost."""
        self._queue.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            try:
                data = self._queue.get(timeout=RETRY_S if self.lost > self._reported else None)
            except Empty:
                self._report()
                continue
            if data is None:
                return
            if not (self._report() and self._put(data)):
                self._unwritten += 1

    def _report(self) -> bool:
        """Write how many lines were lost since the last report, if any; False if that is impossible."""
        lost = self.lost
        if lost == self._reported:
            return True
        line = {"time": round(self._wall(), 3), "event": "log_lost", "lines": lost - self._reported}
        if not self._put(f"{json.dumps(line)}\n".encode()):
            return False
        self._reported = lost
        return True

    def _put(self, data: bytes) -> bool:
        rest = memoryview(b"\n" + data if self._torn else data)
        try:
            while rest:
                rest = rest[self._write(rest) :]
                self._torn = True
        except OSError:
            self.broken = True
            return False
        self.broken = self._torn = False
        return True

    def _write(self, data: memoryview) -> int:
        try:
            return os.write(self._descriptor, data)
        except BlockingIOError:  # somebody who shares the descriptor made it so
            poll = select.poll()
            poll.register(self._descriptor, select.POLLOUT)
            poll.poll()
            return 0


class EventLog:
    """Writes events to a sink, at most PER_SECOND per second and name. It never raises."""

    def __init__(self, clock: Clock, sink: Sink, wall: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._sink = sink
        self._before = CLEAR_LINE if sink.isatty() else ""
        self._wall = wall
        self._windows: dict[str, tuple[int, int, int]] = {}
        self._failed = 0

    @property
    def lost(self) -> int:
        """The number of lines that were lost."""
        return self._failed + (self._sink.lost if isinstance(self._sink, LineWriter) else 0)

    def event(self, name: str, **values: Any) -> None:
        """Write a line, unless this event was written too often within the second."""
        try:
            self._event(name, values)
        except Exception:  # nothing that the service does depends on its log
            self._failed += 1

    def close(self) -> None:
        """Wait until all lines are written, CLOSE_S at most."""
        if isinstance(self._sink, LineWriter):
            self._sink.close()

    def incident(self, where: str, error: BaseException) -> str:
        """Log the type and origin (not the text) of an unexpected exception; returns an id for the client."""
        number = secrets.token_hex(6)
        self.event("incident", incident=number, where=where, error=type(error).__name__, stack=stack_of(error))
        return number

    def _event(self, name: str, values: dict[str, Any]) -> None:
        second = self._clock.now_ns() // 1_000_000_000
        started, written, muted = self._windows.get(name, (second, 0, 0))
        if started != second:
            started, written = second, 0
        if written >= PER_SECOND:
            self._windows[name] = (started, written, muted + 1)
            return
        self._windows[name] = (started, written + 1, 0)
        line: dict[str, Any] = {"time": round(self._wall(), 3), "event": name, **values}
        if muted:
            line["muted"] = muted
        self._sink.write(f"{self._before}{json.dumps(line, default=str)}\n")


def stack_of(error: BaseException) -> list[str]:
    """The functions, files and lines where an exception was raised, without values."""
    frames = traceback.extract_tb(error.__traceback__)
    return [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames][-12:]
