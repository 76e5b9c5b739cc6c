"""The event log as a child process sees it: lines go to control."""

from __future__ import annotations

import os
from typing import Any

from edgeflow.service.children.child import ControlLink
from edgeflow.service.observe.lines import incident_values

NO_MEMORY_EXIT = 70


class ChildLog:
    """Sends events to control, which writes them."""

    def __init__(self, link: ControlLink) -> None:
        self._link = link

    def event(self, name: str, **values: Any) -> None:
        """Write a line; lost if control does not read."""
        self._link.event(name, **values)

    def incident(self, where: str, error: BaseException) -> str:
        """Log an unexpected exception; returns an id. Without memory the process ends: control starts another one."""
        values = incident_values(where, error)
        self.event("incident", **values)
        if isinstance(error, MemoryError):
            os._exit(NO_MEMORY_EXIT)
        incident: str = values["incident"]
        return incident
