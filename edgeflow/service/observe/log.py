"""The event log: one JSON object per line, without frames, instructions, credentials, payloads or exception texts."""

from __future__ import annotations

import json
import secrets
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any, TextIO

from edgeflow.clock import Clock

PER_SECOND = 10  # lines per event; further ones are counted in the next line


class EventLog:
    """Writes events to a text stream, at most PER_SECOND per second and name."""

    def __init__(self, clock: Clock, stream: TextIO | None = None, wall: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._stream = stream if stream is not None else sys.stderr
        self._wall = wall
        self._windows: dict[str, tuple[int, int, int]] = {}

    def event(self, name: str, **values: Any) -> None:
        """Write a line, unless this event was written too often within the second."""
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
        self._stream.write(json.dumps(line, default=str) + "\n")
        self._stream.flush()

    def incident(self, where: str, error: BaseException) -> str:
        """Log the type and origin (not the text) of an unexpected exception; returns an id for the client."""
        number = secrets.token_hex(6)
        frames = traceback.extract_tb(error.__traceback__)
        stack = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
        self.event("incident", incident=number, where=where, error=type(error).__name__, stack=stack[-12:])
        return number
