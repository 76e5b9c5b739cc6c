"""Observers of sessions: metrics and the log are two, probes of the fault tests are others.

They are called on the event loop with immutable values, and must return at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgeflow.scheduler.pace import pace_text
from edgeflow.service.observation.requests import CheckedFrame, OpenRequest
from edgeflow.service.observe.log import EventLog
from edgeflow.service.security.auth import Caller
from edgeflow.service.sessions.admission import SessionPlan
from edgeflow.service.sessions.events import ActionEvent, End, Event
from edgeflow_client.types import Command


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedSession:
    """A session that was opened."""

    number: int
    request: OpenRequest
    plan: SessionPlan
    caller: Caller


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedFrame:
    """A frame that a session accepted."""

    session: int
    frame: CheckedFrame
    gap_ns: int
    """Time since the session's frame before; 0 for the first."""
    unknown_chunk: bool
    """The robot reports that it plays a chunk that it was never sent."""
    late_chunk: bool
    """The robot reports a chunk that arrived too late to continue the one it played."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedSession:
    """A session whose stream is gone."""

    number: int
    epoch: int
    end: End


class SessionObserver:
    """Sees what happens to every session; by default it does nothing about it."""

    def opened(self, session: OpenedSession) -> None:
        """A session was opened."""

    def observed(self, frame: ObservedFrame) -> None:
        """A session accepted a frame."""

    def answered(self, session: int, action: ActionEvent) -> None:
        """The robot was sent an action."""

    def told(self, session: int, event: Event) -> None:
        """The robot was sent anything else: the outcome of a frame, a notice, HOLD or STOP."""

    def closed(self, session: ClosedSession) -> None:
        """A session was closed."""


class Observers(SessionObserver):
    """Several observers as one, in order."""

    def __init__(self, observers: Sequence[SessionObserver]) -> None:
        self._observers = tuple(observers)

    def opened(self, session: OpenedSession) -> None:
        for each in self._observers:
            each.opened(session)

    def observed(self, frame: ObservedFrame) -> None:
        for each in self._observers:
            each.observed(frame)

    def sent(self, session: int, event: Event) -> None:
        """Report an event as an answer or as anything else."""
        if isinstance(event, ActionEvent) and event.command is Command.ACT:
            for each in self._observers:
                each.answered(session, event)
        else:
            for each in self._observers:
                each.told(session, event)

    def closed(self, session: ClosedSession) -> None:
        for each in self._observers:
            each.closed(session)


class SessionLog(SessionObserver):
    """Writes sessions, HOLD and STOP to the log."""

    def __init__(self, log: EventLog) -> None:
        self._log = log

    def opened(self, session: OpenedSession) -> None:
        caller, plan = session.caller, session.plan
        self._log.event(
            "session_opened",
            session=session.number,
            peer=caller.peer,
            principal=caller.principal,
            mode=plan.mode.value,
            pace=pace_text(plan.pace),
        )

    def told(self, session: int, event: Event) -> None:
        if isinstance(event, ActionEvent):
            self._log.event(event.command.value, session=session, epoch=event.epoch, reason=event.reason)

    def closed(self, session: ClosedSession) -> None:
        self._log.event("session_closed", session=session.number, epoch=session.epoch, reason=session.end.reason.label)
