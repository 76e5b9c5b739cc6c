"""Pending events of a robot: statuses and notices are never lost, of commands only the newest counts."""

from __future__ import annotations

from dataclasses import replace

from edgeflow.service.sessions.events import ActionEvent, Event, NoticeEvent, StatusEvent
from edgeflow_client.types import Disposition

MOST_NOTES = 256


class Outbox:
    """Statuses and notices in order, and at most one HOLD or STOP."""

    def __init__(self) -> None:
        self._notes: list[Event] = []
        self.safe: ActionEvent | None = None

    def __bool__(self) -> bool:
        return bool(self._notes) or self.safe is not None

    @property
    def overflowing(self) -> bool:
        """True if more notes wait than a robot that reads its answers lets wait: its session ends."""
        return len(self._notes) > MOST_NOTES

    def note(self, event: StatusEvent | NoticeEvent) -> None:
        """Add an event; consecutive frames superseded for the same reason share one status with a range."""
        last = self._notes[-1] if self._notes else None
        if isinstance(last, StatusEvent) and isinstance(event, StatusEvent) and _joins(last, event):
            self._notes[-1] = replace(last, last_seq=event.seq)
        else:
            self._notes.append(event)

    def take(self) -> list[Event]:
        """Remove and return everything, the command last."""
        events = self._notes
        if self.safe is not None:
            events.append(self.safe)
        self._notes, self.safe = [], None
        return events


def _joins(last: StatusEvent, event: StatusEvent) -> bool:
    return (
        last.disposition is Disposition.SUPERSEDED
        and (event.disposition, event.reason, event.text) == (last.disposition, last.reason, last.text)
        and last.seq + last.frames == event.seq
    )
