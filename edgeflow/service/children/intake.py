"""The bounds of what control accepts from one child: so many messages per second, and moderate lines of the log."""

from __future__ import annotations

import json
import re
from typing import Any

from edgeflow.service.children.messages import Act, ActCancel, LogEvent
from edgeflow.service.observe.log import EventLog
from edgeflow_client.clock import Clock
from edgeflow_client.errors import WorkerError

MAX_PER_S = 500  # messages other than observations; a child sends a tenth of it
MAX_ACTS_PER_S = 5000  # observations, which have a credit as well, and their ends
MAX_LOG_BYTES = 16 << 10
MAX_NAMES = 64  # of events, per role
NAME = re.compile(r"[a-z_]{1,64}")
RESERVED = frozenset({"name", "event", "time", "process", "self"})
NS_PER_S = 1_000_000_000


class Rate:
    """Counts a child's messages by the second."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._second = 0
        self._acts = 0
        self._others = 0

    def count(self, message: object) -> None:
        """Count a message; WorkerError once there are too many within the second."""
        second = self._clock.now_ns() // NS_PER_S
        if second != self._second:
            self._second, self._acts, self._others = second, 0, 0
        if isinstance(message, Act | ActCancel):
            self._acts += 1
        else:
            self._others += 1
        if self._acts > MAX_ACTS_PER_S or self._others > MAX_PER_S:
            raise WorkerError("a child sends too many messages")


class Lines:
    """Writes the lines of one role's children to the log, under its name."""

    def __init__(self, process: str, log: EventLog) -> None:
        self._process = process
        self._log = log
        self._names: set[str] = set()

    def write(self, line: LogEvent) -> None:
        """Write a line; what is not an object of moderate size, or has a strange name, is dropped."""
        values = _values(line)
        if values is None or not NAME.fullmatch(line.name):
            return
        if line.name not in self._names and len(self._names) >= MAX_NAMES:
            return
        self._names.add(line.name)
        kept = {str(key): value for key, value in values.items() if key not in RESERVED}
        self._log.event(line.name, process=self._process, **kept)


def _values(line: LogEvent) -> dict[str, Any] | None:
    if len(line.values) > MAX_LOG_BYTES:
        return None
    try:
        values = json.loads(line.values)
    except (ValueError, RecursionError):
        return None
    return values if isinstance(values, dict) else None
