"""The rates at which a robot may send, and the time for which it may be silent. Integers; callers pass the time."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from edgeflow.config.service import ServiceConfig
from edgeflow.scheduler.turns import TokenBucket
from edgeflow.service.sessions.capacity import DecodeBudget, EarlyHandling
from edgeflow.service.sessions.frames import End
from edgeflow_client.errors import ResourceExhausted
from edgeflow_client.reasons import Reason

PERIODS_SILENT = 5
SECOND_NS = 1_000_000_000
REJECTION_WINDOW_NS = 10_000_000_000
CHANGES = 10  # of instruction or episode, at once
CHANGE_PERIOD_NS = SECOND_NS // 5


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRules:
    """Limits and timeouts from the configuration that a session applies."""

    action_ttl_ms: int
    longest_ttl_ms: int
    silent_hold_ns: int
    silent_free_ns: int
    silent_end_ns: int
    rate_hz: float
    rate_factor: float
    rejected_frames: int
    session_age_ns: int

    @classmethod
    def of(cls, config: ServiceConfig) -> SessionRules:
        """The rules of a configuration."""
        timing, limits = config.timing, config.limits
        return cls(
            action_ttl_ms=timing.action_ttl_ms,
            longest_ttl_ms=timing.longest_ttl_ms,
            silent_hold_ns=timing.silent_hold_ms * 1_000_000,
            silent_free_ns=timing.silent_free_ms * 1_000_000,
            silent_end_ns=timing.silent_end_ms * 1_000_000,
            rate_hz=limits.rate_hz,
            rate_factor=limits.rate_factor,
            rejected_frames=limits.rejected_frames,
            session_age_ns=int(limits.session_age_s * 1e9),
        )

    def permitted(self, period_ns: int, now_ns: int) -> TokenBucket:
        """The frames that a session may send: up to one second's worth at once, to forgive a stalled network."""
        period_hz = SECOND_NS / period_ns
        permitted_hz = min(self.rate_factor * period_hz, max(self.rate_hz, period_hz))
        return TokenBucket(int(SECOND_NS / permitted_hz), max(int(permitted_hz), 4), now_ns)

    def most_excess(self, period_ns: int) -> int:
        """The number of frames within 10 s that may be rejected for their rate before the session ends.

        It is 10 s of the highest rate, so that a robot may send every image of its camera, or everything that a
        stalled network held back. Thousands per second would take processor time from the other robots.
        """
        return int(max(self.rate_hz, SECOND_NS / period_ns) * REJECTION_WINDOW_NS / SECOND_NS)


class RollingCount:
    """A count of events within a sliding window."""

    def __init__(self, limit: int, window_ns: int = REJECTION_WINDOW_NS) -> None:
        self._limit = limit
        self._window_ns = window_ns
        self._times_ns: deque[int] = deque()

    def exceeded(self, now_ns: int) -> bool:
        """Count an event; True if there were more than the limit within the window."""
        self._times_ns.append(now_ns)
        while self._times_ns[0] <= now_ns - self._window_ns:
            self._times_ns.popleft()
        return len(self._times_ns) > self._limit


class SessionRates:
    """The rates of a session. period_ns: the declared time between frames.

    turns: turns of frames at the decoder. permitted: frames that may arrive. changes: changes of instruction or
    episode. decoding: processor time of the decoder. early: processor time that frames before their turn may take.
    """

    def __init__(self, rules: SessionRules, period_ns: int, now_ns: int) -> None:
        self.turns = TokenBucket.of_period(period_ns, now_ns)
        self.permitted = rules.permitted(period_ns, now_ns)
        self._most_excess = rules.most_excess(period_ns)
        self._excess = RollingCount(self._most_excess)
        self.changes = TokenBucket(CHANGE_PERIOD_NS, CHANGES, now_ns)
        self.decoding = DecodeBudget()
        self.early = EarlyHandling()
        self._rejections = RollingCount(rules.rejected_frames)
        self._most_rejections = rules.rejected_frames

    def flood(self, rejected: int, now_ns: int) -> ResourceExhausted | None:
        """Count frames that were rejected for their rate; returns the error that ends the session after too many."""
        if not any(self._excess.exceeded(now_ns) for _ in range(rejected)):
            return None
        text = f"more than {self._most_excess} frames in 10 s came above the permitted rate: keep the declared period"
        return ResourceExhausted(text, reason=Reason.RATE_EXCEEDED)

    def turn_ns(self, now_ns: int) -> int:
        """The time from which the next frame may be decoded beside other sessions; `now_ns` or earlier for now."""
        return max(self.turns.ready_at_ns(now_ns), self.decoding.ready_at_ns(now_ns))

    def early_ns(self, frame_ns: int, now_ns: int) -> int | None:
        """The time from which a frame may be decoded before its turn; None = never.

        frame_ns: processor time that it takes from others, as in EarlyHandling.
        """
        early_ns = self.early.ready_at_ns(frame_ns, now_ns)
        return None if early_ns is None else max(early_ns, self.decoding.ready_at_ns(now_ns))

    def count_rejection(self, now_ns: int) -> End | None:
        """Count a rejection; returns the end of the session after too many."""
        if not self._rejections.exceeded(now_ns):
            return None
        return End("ABORTED", Reason.TOO_MANY_REJECTED, f"more than {self._most_rejections} rejected frames in 10 s")


class Silence:
    """The silence of a robot: when it must hold, when it is parked, and when its session ends.

    A robot that never sent a frame cannot lengthen the permitted silence. held: it was ordered to hold. normal: its
    client is silent while it executes a chunk, so it need not hold, and the end of its session is orderly.
    """

    def __init__(self, rules: SessionRules, period_ns: int, now_ns: int, *, normal: bool = False) -> None:
        self.held = False
        self._normal = normal
        self._rules = rules
        self._hold_after_ns = max(PERIODS_SILENT * period_ns, rules.silent_hold_ns)
        self._begun = False
        self._opened_ns = self._heard_ns = self._used_ns = now_ns

    def heard(self, now_ns: int) -> None:
        """A frame arrived, whatever its contents."""
        self._heard_ns = now_ns

    def broken(self) -> None:
        """A frame with a valid header arrived."""
        self.held, self._begun = False, True

    def used(self, now_ns: int) -> None:
        """The robot sent something usable."""
        self._used_ns = max(self._used_ns, now_ns)

    def end(self, now_ns: int) -> End | None:
        """The end of the session, if it is too old or the robot has been silent for too long."""
        if now_ns - self._opened_ns > self._rules.session_age_ns:
            return End("DEADLINE_EXCEEDED", Reason.SESSION_AGE, "the session reached its maximum age")
        if now_ns - self._heard_ns > self._rules.silent_end_ns:
            seconds = self._rules.silent_end_ns / 1e9
            return End("OK" if self._normal else "DEADLINE_EXCEEDED", Reason.SILENT, f"no frame for {seconds:g} s")
        return None

    def hold_due(self, now_ns: int) -> bool:
        """True if the robot must hold now."""
        if self._normal:
            return False
        most_ns = self._hold_after_ns if self._begun else min(self._hold_after_ns, self._rules.silent_free_ns)
        return not self.held and now_ns - self._heard_ns > most_ns

    def hold(self) -> bool:
        """Record that the robot must hold; False if it holds already, or if its silence is normal."""
        news = not self.held and not self._normal
        self.held = self.held or news
        return news

    def can_park(self, now_ns: int) -> bool:
        """True if the robot has sent nothing usable for so long that its capacity may go to others."""
        free_ns = self._rules.silent_free_ns
        return now_ns - self._used_ns > (max(self._hold_after_ns, free_ns) if self._begun else free_ns)


def changes_too_often(field: str, over_rate: bool) -> ResourceExhausted:
    """The error for a change that is rejected. over_rate: the frame that requests it exceeds the permitted rate."""
    if over_rate:
        text = "the frame rate exceeds the permitted one, and this frame would change the instruction"
    else:
        text = f"instruction or episode may change {SECOND_NS // CHANGE_PERIOD_NS} times per second, {CHANGES} at once"
    return ResourceExhausted(text, field=field, reason=Reason.RATE_EXCEEDED)
