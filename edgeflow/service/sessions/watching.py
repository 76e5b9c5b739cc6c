"""The observer of live pages: while somebody watches, it collects what happens to the sessions, batch after batch.

A callback appends numbers to lists, or keeps a reference; objects for the page are made once per batch. While nobody
watches, it only remembers which sessions are open, since when a robot holds, and the notices that stay in force.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from edgeflow.contract import PolicyInputs
from edgeflow.service.observation.requests import CheckedFrame
from edgeflow.service.sessions.frames import ActionEvent, Event, NoticeEvent, StatusEvent
from edgeflow.service.sessions.observers import ClosedSession, ObservedFrame, OpenedSession, SessionObserver
from edgeflow.service.sessions.runner import SessionRunner
from edgeflow.service.sessions.shown import SessionWarning, facts, input_warnings, state_of, status
from edgeflow_client.trajectory import Seam
from edgeflow_client.types import Disposition

MOST_PER_BATCH = 256  # answers, events and executed rows of a session; further ones are left out
MOST_ROWS, MOST_COLUMNS = 64, 32  # of a chunk that is shown
MOST_STATE = 256  # numbers of the state that are shown
RATE_BATCHES = 16  # over which a robot's rate is measured
RATE_FRAMES = 8  # the fewest that show one
RATE_PERCENT = 20  # by which a robot may come faster or slower than it declared
PAUSE_NS = 300_000_000  # a longer time without frames, or one of so many periods, says nothing about the rate
PAUSE_PERIODS = 5
STANDING = frozenset({"stamps", "ignored", "mode"})  # notices that stay in force
FULL_RATE = 100
STATUS_BATCHES = 4  # after so many, a status is told again although nothing in its key has changed


def unix_ms() -> int:
    """The time in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


@dataclass(slots=True, kw_only=True)
class WatchedSession:
    """A session, and what happened to it since the last batch."""

    opened: OpenedSession
    opened_ms: int
    since_ms: int
    """The time from which its robot acts, holds or waits."""
    notices: dict[str, str] = field(default_factory=dict)
    """Text of the notices in force, by kind."""
    pause_ns: int
    """A longer time without frames says nothing about the rate."""
    inputs: tuple[SessionWarning, ...] | None = None
    """Warnings about names and units; None = not looked for yet."""
    shown: tuple[str, str] = ("", "")
    """State and reason in the last batch."""
    shown_since_ms: int = 0
    """`since_ms` in the last batch."""
    told: tuple[Any, ...] = ()
    """Values of which the last status was made."""
    untold: int = 0
    """Batches since then."""
    newest: CheckedFrame | None = None
    frames: int = 0
    gaps_ns: int = 0
    gaps: int = 0
    """Both: times between frames, without pauses."""
    rates: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=RATE_BATCHES))
    """Number and sum of these times per batch."""
    reported: int = 0
    """The newest answer whose arrival the robot reported; 0 = it reports none."""
    ages_ns: dict[int, int] = field(default_factory=dict)
    """Latency of answers by frame, measured by the robot on arrival."""
    answers: list[ActionEvent] = field(default_factory=list)
    late: list[ActionEvent] = field(default_factory=list)
    """Answers of the last batch whose arrival the robot had not reported yet."""
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    events: list[tuple[int, ActionEvent | NoticeEvent]] = field(default_factory=list)
    chunks: list[tuple[int, ActionEvent]] = field(default_factory=list)
    executed: list[tuple[int, int, int]] = field(default_factory=list)

    @property
    def changed(self) -> bool:
        return bool(self.frames or self.answers or self.late or self.outcomes or self.events)

    def clear(self) -> None:
        """Forget what was collected for a batch."""
        self.frames = self.gaps_ns = self.gaps = 0
        for each in (self.answers, self.outcomes, self.events, self.chunks, self.executed):
            each.clear()

    def forget(self) -> None:
        """Forget everything that was collected while somebody watched."""
        self.clear()
        self.newest, self.reported, self.told = None, 0, ()
        for each in (self.late, self.ages_ns, self.rates):
            each.clear()


class SessionWatch(SessionObserver):
    """Watches sessions for live pages.

    runners: the open sessions. inputs: the needs of the policy, None while no worker is ready. model: the
    service's name for it. Sessions of one frame are left out.
    """

    def __init__(
        self,
        runners: Callable[[], Mapping[int, SessionRunner]],
        inputs: Callable[[], PolicyInputs | None],
        model: str = "",
        now_ms: Callable[[], int] = unix_ms,
    ) -> None:
        self.details: frozenset[int] = frozenset()
        """Sessions whose chunks and states are wanted."""
        self.urgent: Callable[[], None] = lambda: None
        """Called when a robot is sent HOLD or STOP while somebody watches."""
        self._runners = runners
        self._inputs = inputs
        self._model = model
        self._now_ms = now_ms
        self._on = False
        self._sessions: dict[int, WatchedSession] = {}
        self._still: set[int] = set()  # robots that were not sent an action since their last command to hold
        self._opened: list[int] = []
        self._closed: list[dict[str, Any]] = []
        self._last: dict[int, dict[str, Any]] = {}  # the last news of sessions that were closed

    def start(self) -> None:
        """Begin to collect."""
        self._on = True

    def stop(self) -> None:
        """Collect no more, and forget what was collected."""
        self._on, self.details = False, frozenset()
        self._opened.clear()
        self._closed.clear()
        self._last.clear()
        for seen in self._sessions.values():
            seen.forget()

    # The events of sessions.

    def opened(self, session: OpenedSession) -> None:
        if session.single:
            return
        now_ms, number = self._now_ms(), session.number
        pause_ns = max(PAUSE_NS, PAUSE_PERIODS * session.request.control_period_ns)
        seen = WatchedSession(opened=session, opened_ms=now_ms, since_ms=now_ms, pause_ns=pause_ns)
        self._sessions[number] = seen
        if session.request.ignored:
            seen.notices["ignored"] = f"fields that this version does not know: {', '.join(session.request.ignored)}"
        self._still.add(number)
        if self._on:
            self._opened.append(number)

    def observed(self, frame: ObservedFrame) -> None:
        if not self._on or (seen := self._sessions.get(frame.session)) is None:
            return
        seen.newest = observed = frame.frame
        seen.frames += 1
        if 0 < frame.gap_ns <= seen.pause_ns:
            seen.gaps += 1
            seen.gaps_ns += frame.gap_ns
        arrived = observed.arrived
        if arrived is not None and arrived.seq > seen.reported and len(seen.ages_ns) < MOST_PER_BATCH:
            seen.reported = arrived.seq
            seen.ages_ns[arrived.seq] = arrived.age_ns
        playing = observed.playing
        if playing is not None and frame.session in self.details and len(seen.executed) < MOST_PER_BATCH:
            seen.executed.append((self._now_ms(), playing.seq, playing.step))

    def answered(self, session: int, action: ActionEvent) -> None:
        if session in self._still:
            self._still.discard(session)
            self._sessions[session].since_ms = self._now_ms()
        if not self._on or (seen := self._sessions.get(session)) is None or len(seen.answers) >= MOST_PER_BATCH:
            return
        seen.answers.append(action)
        if self.details and session in self.details:
            seen.chunks.append((self._now_ms(), action))

    def notified(self, session: int, event: Event) -> None:
        seen = self._sessions.get(session)
        if seen is None:
            return
        match event:
            case StatusEvent():
                if self._on and event.disposition is not Disposition.ACTED:  # its answer is there
                    seen.outcomes[event.disposition.value, event.reason] += event.frames
            case ActionEvent() | NoticeEvent():
                self._changed(session, seen, event)

    def closed(self, session: ClosedSession) -> None:
        if (seen := self._sessions.pop(session.number, None)) is None:
            return
        self._still.discard(session.number)
        if self._on:
            end = {"code": session.end.code, "reason": session.end.reason.label}
            self._closed.append({"session": session.number, "time": self._now_ms(), **end})
            self._last[session.number] = _news(seen, last=True)

    def _changed(self, number: int, seen: WatchedSession, event: ActionEvent | NoticeEvent) -> None:
        """A robot was sent HOLD, STOP or a notice."""
        now_ms = self._now_ms()
        if isinstance(event, ActionEvent) or event.kind == "epoch":
            self._still.add(number)
            seen.since_ms = now_ms
        elif event.kind in STANDING:
            seen.notices[event.kind] = event.text
        if self._on and len(seen.events) < MOST_PER_BATCH:
            seen.events.append((now_ms, event))
        if self._on and isinstance(event, ActionEvent):
            self.urgent()

    # Objects for pages.

    def sessions(self, only: int | None = None) -> list[dict[str, Any]]:
        """Facts and status of all sessions or of one, if it is open, whether or not anybody watches."""
        wanted = self._sessions if only is None else self._sessions.keys() & {only}
        return [self._whole(number) for number in wanted if number in self._runners()]

    def batch(self, *, whole: bool) -> dict[str, Any]:
        """All news since the last batch. whole: with the facts of all sessions."""
        found: dict[str, Any] = {"time": self._now_ms()}
        runners = self._runners()
        new, self._opened = [each for each in self._opened if each in runners], []
        if whole:
            found["whole"] = self.sessions()
        elif new:
            found["opened"] = [self._whole(number) for number in new]
        if self._closed:
            found["closed"], self._closed = self._closed, []
        found["sessions"], self._last = self._last, {}
        found["sessions"] |= {
            number: self._update(number, seen, runners[number])
            for number, seen in self._sessions.items()
            if number in runners and (seen.changed or seen.shown != state_of(runners[number].session))
        }
        return found

    @property
    def count(self) -> int:
        """Number of sessions."""
        return len(self._sessions)

    def newest(self, session: int) -> CheckedFrame | None:
        """The newest frame of a session; None if none came since somebody watches."""
        return seen.newest if (seen := self._sessions.get(session)) is not None else None

    def request(self, session: int) -> OpenedSession | None:
        """A session as it was opened; None if it is gone."""
        return seen.opened if (seen := self._sessions.get(session)) is not None else None

    def warnings(self, number: int) -> list[SessionWarning]:
        """The warnings of a session in force."""
        seen = self._sessions[number]
        if seen.inputs is None and (inputs := self._inputs()) is not None:
            seen.inputs = input_warnings(seen.opened.request, inputs)
        notices = (SessionWarning(kind, text) for kind, text in seen.notices.items())
        return [*(seen.inputs or ()), *notices, *_rate_warning(seen)]

    def _whole(self, number: int) -> dict[str, Any]:
        seen = self._sessions[number]
        return facts(seen.opened, model=self._model, opened_ms=seen.opened_ms) | {
            "status": self._status(number, seen, self._runners()[number])
        }

    def _status(self, number: int, seen: WatchedSession, runner: SessionRunner) -> dict[str, Any]:
        return status(runner, since_ms=seen.since_ms, warnings=self.warnings(number))

    def _update(self, number: int, seen: WatchedSession, runner: SessionRunner) -> dict[str, Any]:
        seen.rates.append((seen.gaps, seen.gaps_ns))
        shown = state_of(runner.session)
        if seen.shown[0] not in ("", shown[0]) and seen.since_ms == seen.shown_since_ms:
            seen.since_ms = self._now_ms()  # a session changes before its event is here
        seen.shown, seen.shown_since_ms = shown, seen.since_ms
        found = _news(seen)
        session = runner.session
        made_of = (
            shown,
            seen.since_ms,
            runner.plan,
            session.epoch,
            session.instruction,
            session.holds.operator,
            session.answers.execution.now,
            len(seen.notices),
        )
        seen.untold += 1
        if made_of != seen.told or seen.untold >= STATUS_BATCHES:  # most of the cost of an update
            seen.told, seen.untold = made_of, 0
            found |= self._status(number, seen, runner)
        if number in self.details:
            found["detail"] = {
                "chunks": [_chunk(time_ms, action) for time_ms, action in seen.chunks],
                "state": _finite(seen.newest.state[:MOST_STATE]) if seen.newest is not None else [],
                "executed": [list(each) for each in seen.executed],
            }
        seen.clear()
        return found


def _news(seen: WatchedSession, *, last: bool = False) -> dict[str, Any]:
    """All news of a session besides its status. last: it was closed."""
    return {
        "frames": seen.frames,
        "answers": _answers(seen, last=last),
        "outcomes": [[*outcome, count] for outcome, count in seen.outcomes.items()],
        "events": [_event(time_ms, event) for time_ms, event in seen.events],
    }


def _answers(seen: WatchedSession, *, last: bool) -> list[list[Any]]:
    """The answers as numbers. The latency is the one that the robot measured on arrival, with the service's own for
    robots that report none; an answer waits one batch for that report.
    """
    ready = seen.late
    late: list[ActionEvent] = []
    for action in seen.answers:
        known = last or not seen.reported or action.seq <= seen.reported
        (ready if known else late).append(action)
    ages_ns, seen.late = seen.ages_ns, late
    found: list[list[Any]] = []
    for action in ready:
        age_ns = ages_ns.pop(action.seq, action.age_ns)
        seam = action.report.seam
        how = "" if seam is Seam.NONE else seam.value
        found.append([action.seq, age_ns / 1e6, action.timings.passes, how])
    if not late:
        ages_ns.clear()
    return found


def _rate_warning(seen: WatchedSession) -> list[SessionWarning]:
    """A warning if frames come faster or slower than declared. Clients of front ends declare no rate."""
    count, gaps_ns = (sum(each) for each in zip((seen.gaps, seen.gaps_ns), *seen.rates, strict=True))
    period_ns = seen.opened.request.control_period_ns
    if seen.opened.request.front or count < RATE_FRAMES:
        return []
    measured_ns = gaps_ns / count
    if abs(measured_ns - period_ns) * 100 <= RATE_PERCENT * period_ns:
        return []
    text = f"a frame every {measured_ns / 1e6:.0f} ms instead of every {period_ns / 1e6:.0f} ms as declared"
    return [SessionWarning("rate", text)]


def _event(time_ms: int, event: ActionEvent | NoticeEvent) -> dict[str, Any]:
    if isinstance(event, ActionEvent):
        return {"time": time_ms, "kind": event.command.value, "reason": str(event.reason), "text": ""}
    return {"time": time_ms, "kind": event.kind, "reason": event.code, "text": event.text}


def _chunk(time_ms: int, action: ActionEvent) -> dict[str, Any]:
    """A chunk with the moment of its first row: the capture of its frame, or where execution begins on arrival, now."""
    chunk, how = action.chunk, action.execution
    values = chunk.values if chunk is not None else ()
    horizon = chunk.horizon if chunk is not None else 1
    width = len(values) // horizon
    starts = range(0, min(horizon, MOST_ROWS) * width, width) if width else ()
    rows = [list(values[start : start + min(width, MOST_COLUMNS)]) for start in starts]
    step_ms = chunk.step_ms if chunk is not None else 0.0
    if how is not None and how.rate_percent:
        step_ms *= FULL_RATE / how.rate_percent
    starts_ms = time_ms if how is not None and how.from_arrival else time_ms - action.age_ns // 1_000_000
    return {"seq": action.seq, "time": starts_ms, "step_ms": step_ms, "values": rows}


def _finite(numbers: Collection[float]) -> list[float | None]:
    return [number if isfinite(number) else None for number in numbers]
