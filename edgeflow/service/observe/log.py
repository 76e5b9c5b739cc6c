"""The event log, without frames, instructions, credentials, payloads or exception texts.

A file or a pipe gets one JSON object per line and nothing else, a terminal readable lines with level and ISO time.
No caller ever waits for the log or sees its errors: lines go through a bounded queue, and a thread writes them.
"""

from __future__ import annotations

import itertools
import json
import os
import secrets
import select
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from enum import Enum
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from edgeflow_client.clock import Clock

TAIL_LINES = 200
PER_SECOND = 10  # lines per event; further ones are counted in the next line
KEPT_LINES = 1000  # queued for a slow descriptor; further ones are lost
CLOSE_S = 0.2
RETRY_S = 1.0  # between attempts to report lost lines, when nothing else is written
CLEAR_LINE = "\r\x1b[K"  # removes a progress bar
MOST_TEXT = 4000  # characters of a line that a library wrote to standard error
PROGRESS = ("step", "done", "total")  # of a start: they change too often for a line each
ERRORS = frozenset({"failed", "fault", "incident", "task_ended", "worker_failed", "child_failed", "chat_failed"})
WARNINGS = frozenset(
    {"warning", "stderr", "log_lost", "worker_lost", "child_lost", "standby_lost", "standby_failed", "loop_stalled"}
    | {"recording_failing", "recording_lost", "recorder_restarted", "trace_failing", "trace_lost", "tracer_restarted"}
    | {"loop_lost", "auth_failed", "tokens_kept", "certificate_kept", "prefix_not_kept", "fields_ignored"}
)


class Log:
    """A log of events: one line each, at most PER_SECOND per second and name; the rest is counted."""

    def __init__(self, second: Callable[[], int]) -> None:
        self._second = second
        self._windows: dict[str, tuple[int, int, int]] = {}

    def event(self, name: str, **values: Any) -> None:
        """Write a line, unless this event was written too often within the second; never waits."""
        second = self._second()
        started, written, muted = self._windows.get(name, (second, 0, 0))
        if started != second:
            started, written = second, 0
        if written >= PER_SECOND:
            self._windows[name] = (started, written, muted + 1)
            return
        self._windows[name] = (started, written + 1, 0)
        self._write(name, {**values, "muted": muted} if muted else values)

    def incident(self, where: str, error: BaseException) -> str:
        """Log the type and origin (not the text) of an unexpected exception; returns an id for the client."""
        values = incident_values(where, error)
        self.event("incident", **values)
        number: str = values["incident"]
        return number

    def _write(self, name: str, values: dict[str, Any]) -> None:
        raise NotImplementedError


def incident_values(where: str, error: BaseException) -> dict[str, Any]:
    """The values of a line about an unexpected exception, with a new incident id."""
    number = secrets.token_hex(6)
    return {"incident": number, "where": where, "error": type(error).__name__, "stack": stack_of(error)}


@dataclass(frozen=True, slots=True)
class LoggedEvent:
    """A line of the log."""

    number: int
    """Lines have consecutive numbers, from 1 on."""
    time_s: float
    """Seconds since 1970."""
    event: str
    values: dict[str, Any]


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
        self._unwritten = 0  # lost lines, counted by the thread
        self._rejected = 0  # lost lines, counted by the callers
        self._lock = threading.RLock()
        self._reported = 0
        self._torn = False
        self._thread = threading.Thread(target=self._run, name="lines", daemon=True)
        self._thread.start()

    @property
    def lost(self) -> int:
        """The number of writes that were lost."""
        return self._rejected + self._unwritten

    def write(self, text: str, /) -> int:
        """Queue text; it is lost if the queue is full."""
        self.pass_on(text.encode(errors="backslashreplace"))
        return len(text)

    def pass_on(self, data: bytes) -> None:
        """Queue bytes of any origin."""
        if self._queue.qsize() < KEPT_LINES:
            self._queue.put(data)
        else:
            with self._lock:
                self._rejected += 1

    def flush(self) -> None:
        """Do nothing: the thread writes as soon as it can."""

    def isatty(self) -> bool:
        """True if the descriptor is a terminal."""
        return os.isatty(self._descriptor)

    def close(self, timeout_s: float = CLOSE_S) -> bool:
        """Wait until everything is written, at most timeout_s; True if it was. Later text is lost."""
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
        """Write the number of lines lost since the last report, if any; False if that is impossible."""
        lost = self.lost
        if lost == self._reported:
            return True
        line = event_line(self._wall(), "log_lost", {"lines": lost - self._reported}, readable=self.isatty())
        if not self._put(f"{line}\n".encode()):
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
        except BlockingIOError:  # a process that shares the descriptor made it non-blocking
            poll = select.poll()
            poll.register(self._descriptor, select.POLLOUT)
            poll.poll()
            return 0


class EventLog(Log):
    """The log that control writes to a sink. It never raises."""

    def __init__(self, clock: Clock, sink: Sink, wall: Callable[[], float] = time.time) -> None:
        super().__init__(lambda: clock.now_ns() // 1_000_000_000)
        self._sink = sink
        self._readable = sink.isatty()
        self._before = CLEAR_LINE if self._readable else ""
        self._wall = wall
        self._failed = 0
        self._numbers = itertools.count(1)
        self._tail: deque[LoggedEvent] = deque(maxlen=TAIL_LINES)

    def since(self, number: int) -> list[LoggedEvent]:
        """The newest lines, at most TAIL_LINES, whose number is above this one."""
        return [line for line in list(self._tail) if line.number > number]

    @property
    def lost(self) -> int:
        """The number of lines that were lost."""
        return self._failed + (self._sink.lost if isinstance(self._sink, LineWriter) else 0)

    def event(self, name: str, **values: Any) -> None:
        try:
            super().event(name, **values)
        except Exception:  # the service must not fail because of its log
            self._failed += 1

    def audit(self, name: str, **values: Any) -> None:
        """Write a line in any case; callers limit the rate."""
        try:
            self._write(name, values)
        except Exception:
            self._failed += 1

    def close(self) -> None:
        """Wait until all lines are written, CLOSE_S at most."""
        if isinstance(self._sink, LineWriter):
            self._sink.close()

    def _write(self, name: str, values: dict[str, Any]) -> None:
        time_s = self._wall()
        self._tail.append(LoggedEvent(next(self._numbers), time_s, name, values))
        self._sink.write(f"{self._before}{event_line(time_s, name, values, readable=self._readable)}\n")


class LogAnnouncer:
    """Writes every new phase of the service to its log, for files and pipes; terminals show them as text."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._phase: str | None = None

    def __call__(self, status: Any) -> None:
        values = {name: value for name, value in asdict(status).items() if value and name not in PROGRESS}
        if values["phase"] != self._phase:
            self._phase = values["phase"]
            self._log.event("phase", **values)

    def close(self) -> None:
        """Do nothing: the log is closed by its owner."""


def level_of(event: str) -> str:
    """info, warning or error."""
    return "error" if event in ERRORS else "warning" if event in WARNINGS else "info"


def event_line(time_s: float, name: str, values: dict[str, Any], *, readable: bool = False) -> str:
    """A line of the log, without its end: JSON, or words for a terminal. time_s: seconds since 1970."""
    if not readable:
        line = {"time": round(time_s, 3), "level": level_of(name), "event": name, **values}
        return json.dumps(line, default=str)
    when = datetime.fromtimestamp(time_s, timezone.utc).isoformat(timespec="milliseconds")
    words = [f"{key}={_plain(value)}" for key, value in values.items()]
    return " ".join((when, f"{level_of(name):7}", name, *words))


def _plain(value: Any) -> str:
    """A value as JSON, short words without quotes; control characters and line ends are escaped."""
    text = value.value if isinstance(value, Enum) else value
    if isinstance(text, str) and text.isascii() and text.isprintable() and text and not set(text) & set(' "=\\'):
        return text
    return json.dumps(value, default=str)


def stack_of(error: BaseException) -> list[str]:
    """The functions, files and lines where an exception was raised, without values."""
    frames = traceback.extract_tb(error.__traceback__)
    return [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames][-12:]
