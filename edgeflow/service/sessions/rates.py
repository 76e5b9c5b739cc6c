"""How often a robot may send, and how long it may be silent. Pure integers; callers pass the time."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from edgeflow.config.service import ServiceConfig
from edgeflow.service.sessions.capacity import DecodeBudget
from edgeflow.service.sessions.frames import End
from edgeflow_client.errors import ResourceExhausted
from edgeflow_client.reasons import Reason

PERIODS_SILENT = 5
SECOND_NS = 1_000_000_000
REJECTION_WINDOW_NS = 10_000_000_000
BURST = 3  # frames at once, at the declared rate
ROUNDING_NS = 500_000  # a period is declared in whole milliseconds
FASTER_PERCENT = 5  # that a robot may send faster than it declared, as clocks and timers do
CHANGES = 10  # of instruction or episode, at once
CHANGE_PERIOD_NS = SECOND_NS // 5


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRules:
    """The limits and time limits of the configuration that a session applies."""

    action_ttl_ms: int
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
            silent_hold_ns=timing.silent_hold_ms * 1_000_000,
            silent_free_ns=timing.silent_free_ms * 1_000_000,
            silent_end_ns=timing.silent_end_ms * 1_000_000,
            rate_hz=limits.rate_hz,
            rate_factor=limits.rate_factor,
            rejected_frames=limits.rejected_frames,
            session_age_ns=int(limits.session_age_s * 1e9),
        )

    def permitted(self, period_ns: int, now_ns: int) -> TokenBucket:
        """The frames that a session may send: one second's worth at once, so that a stalled network is forgiven."""
        period_hz = SECOND_NS / period_ns
        permitted_hz = min(self.rate_factor * period_hz, max(self.rate_hz, period_hz))
        return TokenBucket(int(SECOND_NS / permitted_hz), max(int(permitted_hz), 4), now_ns)

    def most_excess(self, period_ns: int) -> int:
        """How many frames within 10 s may be rejected for their rate before they end the session.

        That is 10 s of the highest rate: a robot that sends every picture of its camera, or at once what a stalled
        network held back, goes on. Thousands per second would take the other robots' processor time.
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


class TokenBucket:
    """A bucket that earns a token per period and holds at most `burst`; it starts full."""

    def __init__(self, period_ns: int, burst: int, now_ns: int) -> None:
        self._period_ns = period_ns
        self._most_ns = burst * period_ns
        self._earned_ns = self._most_ns
        self._then_ns = now_ns

    def take(self, now_ns: int) -> bool:
        """Take a token; False if there is none."""
        self._earn(now_ns)
        if self._earned_ns < self._period_ns:
            return False
        self._earned_ns -= self._period_ns
        return True

    def ready_at_ns(self, now_ns: int) -> int:
        """When the next token can be taken; `now_ns` or earlier if there is one."""
        self._earn(now_ns)
        return now_ns + self._period_ns - self._earned_ns

    def _earn(self, now_ns: int) -> None:
        self._earned_ns = min(self._earned_ns + max(now_ns - self._then_ns, 0), self._most_ns)
        self._then_ns = now_ns


class SessionRates:
    """The rates of a session. period_ns: between frames, as declared.

    turns: of frames at the decoder. permitted: frames that may come. changes: of instruction or episode. decoding: the
    decoder's time.
    """

    def __init__(self, rules: SessionRules, period_ns: int, now_ns: int) -> None:
        turn_ns = max(period_ns - max(ROUNDING_NS, period_ns * FASTER_PERCENT // 100), 1)
        self.turns = TokenBucket(turn_ns, BURST, now_ns)
        self.permitted = rules.permitted(period_ns, now_ns)
        self._most_excess = rules.most_excess(period_ns)
        self._excess = RollingCount(self._most_excess)
        self.changes = TokenBucket(CHANGE_PERIOD_NS, CHANGES, now_ns)
        self.decoding = DecodeBudget()
        self._rejections = RollingCount(rules.rejected_frames)
        self._most_rejections = rules.rejected_frames

    def flood(self, rejected: int, now_ns: int) -> ResourceExhausted | None:
        """Count frames that were rejected for their rate; why the session ends if there are too many."""
        if not any(self._excess.exceeded(now_ns) for _ in range(rejected)):
            return None
        text = f"more than {self._most_excess} frames in 10 s came above the permitted rate: keep the declared period"
        return ResourceExhausted(text, reason=Reason.RATE_EXCEEDED)

    def turn_ns(self, now_ns: int) -> int:
        """When the next frame may be decoded, beside other sessions; `now_ns` or earlier if it may be now."""
        return max(self.turns.ready_at_ns(now_ns), self.decoding.ready_at_ns(now_ns))

    def rejected(self, now_ns: int) -> End | None:
        """Count a rejection; the end of the session if there are too many."""
        if not self._rejections.exceeded(now_ns):
            return None
        return End("ABORTED", Reason.TOO_MANY_REJECTED, f"more than {self._most_rejections} rejected frames in 10 s")


class Silence:
    """How long a robot has been silent, and what follows from it.

    A robot that never sent a frame cannot lengthen the silence that is permitted. held: it was ordered to hold.
    normal: it is silent while it executes a chunk, so it need not hold, and its end counts as orderly.
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
        """True if the robot has to hold."""
        if self._normal:
            return False
        most_ns = self._hold_after_ns if self._begun else min(self._hold_after_ns, self._rules.silent_free_ns)
        return not self.held and now_ns - self._heard_ns > most_ns

    def hold(self) -> bool:
        """Note that the robot has to hold; False if it does already, or its silence is normal."""
        news = not self.held and not self._normal
        self.held = self.held or news
        return news

    def place_is_free(self, now_ns: int) -> bool:
        """True if the robot has sent nothing usable for so long that others may have its place."""
        free_ns = self._rules.silent_free_ns
        return now_ns - self._used_ns > (max(self._hold_after_ns, free_ns) if self._begun else free_ns)


def changes_too_often(field: str, over_rate: bool) -> ResourceExhausted:
    """The rejection of a change. over_rate: because the frame that brings it exceeds the permitted rate."""
    if over_rate:
        text = "the frame rate exceeds the permitted one, and this frame would change the instruction"
    else:
        text = f"instruction or episode may change {SECOND_NS // CHANGE_PERIOD_NS} times per second, {CHANGES} at once"
    return ResourceExhausted(text, field=field, reason=Reason.RATE_EXCEEDED)
