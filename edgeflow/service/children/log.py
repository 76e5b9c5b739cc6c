"""The event log as a child process sees it: lines go to control."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from edgeflow.service.children.child import ControlLink
from edgeflow.service.observe.lines import incident_values
from edgeflow.service.observe.log import PER_SECOND

NO_MEMORY_EXIT = 70


class ChildLog:
    """Sends events to control, which writes them: at most PER_SECOND per second and name; the rest is counted."""

    def __init__(self, link: ControlLink, now_s: Callable[[], float] = time.monotonic) -> None:
        self._link = link
        self._now_s = now_s
        self._windows: dict[str, tuple[int, int, int]] = {}

    def event(self, name: str, **values: Any) -> None:
        """Write a line; lost if control does not read."""
        second = int(self._now_s())
        started, written, muted = self._windows.get(name, (second, 0, 0))
        if started != second:
            started, written = second, 0
        if written >= PER_SECOND:
            self._windows[name] = (started, written, muted + 1)
            return
        self._windows[name] = (started, written + 1, 0)
        self._link.event(name, **values, **({"muted": muted} if muted else {}))

    def incident(self, where: str, error: BaseException) -> str:
        """Log an unexpected exception; returns an id. Without memory the process ends: control starts another one."""
        values = incident_values(where, error)
        self.event("incident", **values)
        if isinstance(error, MemoryError):
            os._exit(NO_MEMORY_EXIT)
        incident: str = values["incident"]
        return incident
