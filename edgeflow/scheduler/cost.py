"""The cost of a pass, and when chat has its turn beside control: integers only, time is an argument.

Costs are measured at a few corners and interpolated linearly between them. Control goes first. Robots send at their
declared period, so the arrival of each session's next frame can be predicted; a pass of chat begins only where it will
finish by then, even if it is one of the slow ones, so that control decodes that frame undisturbed. A late session
reserves the device for one more period, then counts as silent. So that chat makes progress beside robots that leave no
gap, one step is granted whenever none has run for `patience_ns`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median, median_high, median_low
from typing import Generic, TypeVar

from edgeflow.contract import PassKind, PassTimes

DRIFT_PERCENT = 20
DRIFT_SAMPLES = 20  # passes that suffice for a judgement however short they are
DRIFT_NS = 400_000_000  # time that suffices with fewer, so that one disturbance of a device is no drift
RECENT_NS = 1_000_000_000  # passes before are forgotten, except for the last LEAST_SAMPLES
LEAST_SAMPLES = 3
CERTAIN_NS = 150_000_000  # what a pass takes longer or shorter: two suffice, since noise of a host is smaller
KEPT_SAMPLES = 100
TOGETHER_NS = 2_000_000_000  # after a drift of one kind of pass, in which another kind may follow it


@dataclass(frozen=True, slots=True)
class PassSample:
    """One pass that ran."""

    prefills: int
    decodes: int
    """Rows as counted by Pass.decode_rows."""
    ns: int
    lead_ns: int = 0
    """The time of the host before the pass was enqueued, as in PassTimes.launch_ns."""
    whole: bool = False
    """As in Pass."""

    @property
    def kind(self) -> PassKind:
        if self.whole:
            return "whole"
        return "prefill" if self.prefills else "decode"


@dataclass(frozen=True, slots=True)
class ChunkTimes:
    """Times of chat's passes: `step_ns` for a decode row, and `row_ns` for each further row of a prompt's chunk.

    The prefills of such a pass are the rows of its chunk.
    """

    step_ns: int
    row_ns: int

    def pass_ns(self, prefills: int, decodes: int, whole: bool = False) -> int:  # noqa: ARG002
        return self.step_ns + (prefills + decodes - 1) * self.row_ns

    def corrected(self, percent: int, *, kind: PassKind) -> ChunkTimes:
        """Only decode rows show how the device has changed; a chunk's time depends on more than its rows."""
        if kind != "decode":
            return self
        return ChunkTimes(max(self.step_ns * percent // 100, 1), max(self.row_ns * percent // 100, 1))


TimesOf = TypeVar("TimesOf", PassTimes, ChunkTimes)


class CostModel(Generic[TimesOf]):
    """Pass times that follow the device within two seconds: what drifted by more than 20 % takes its measured value.

    Where passes take longer than 0.8 s, it takes two of them.
    """

    def __init__(self, times: TimesOf) -> None:
        self.times: TimesOf = times
        kinds: tuple[PassKind, ...] = ("prefill", "decode", "whole")
        self._recent = {kind: RecentRatios() for kind in kinds}
        self._drifted: dict[PassKind, tuple[int, bool]] = {}  # when passes of a kind drifted; True: became slower

    def observe(self, samples: Iterable[PassSample], now_ns: int) -> bool:
        """Take passes that were reported now; True when the times were changed.

        Passes of each kind are judged apart. A kind of which few run needs only one pass that agrees with another
        kind's drift, since a slower clock slows all of them.
        """
        for sample in samples:
            expected = self.times.pass_ns(sample.prefills, sample.decodes, sample.whole)
            if expected > 0:
                self._recent[sample.kind].add(sample.ns, expected, now_ns)
        changed = False
        for kind, recent in self._recent.items():
            percent = recent.drift(now_ns)
            if self._correct(kind, percent):
                self._drifted[kind] = (now_ns, percent > 100)
                changed = True
        for kind, recent in self._recent.items():
            if recent.newest_ns >= now_ns - RECENT_NS and self._follows(kind, recent.newest > 100, now_ns):
                changed = self._correct(kind, recent.newest) or changed
        return changed

    def _follows(self, kind: PassKind, slower: bool, now_ns: int) -> bool:
        """True where another kind has just drifted in this direction."""
        drifts = (drift for other, drift in self._drifted.items() if other != kind)
        return any(now_ns - at_ns <= TOGETHER_NS and slower is towards for at_ns, towards in drifts)

    def _correct(self, kind: PassKind, percent: int) -> bool:
        if abs(percent - 100) <= DRIFT_PERCENT:
            return False
        self._recent[kind].clear()
        before, self.times = self.times, self.times.corrected(percent, kind=kind)
        return self.times != before


class RecentRatios:
    """The last passes of a kind: measured times in per cent of the expected ones."""

    def __init__(self) -> None:
        self._found: deque[tuple[int, int, bool]] = deque(maxlen=KEPT_SAMPLES)

    def add(self, took_ns: int, expected_ns: int, now_ns: int) -> None:
        self._found.append((now_ns, took_ns * 100 // expected_ns, abs(took_ns - expected_ns) >= CERTAIN_NS))

    def clear(self) -> None:
        self._found.clear()

    @property
    def newest(self) -> int:
        """The ratio of the last pass; 100 without any."""
        return self._found[-1][1] if self._found else 100

    @property
    def newest_ns(self) -> int:
        """When the last pass was reported; -1 without any."""
        return self._found[-1][0] if self._found else -1

    def drift(self, now_ns: int) -> int:
        """The ratio of the newest passes, where most are slower than expected, or most are faster; else 100."""
        while len(self._found) > LEAST_SAMPLES and self._found[0][0] < now_ns - RECENT_NS:
            self._found.popleft()
        if abs(self.newest - 100) <= DRIFT_PERCENT:  # nearly always: the rest is not needed
            return 100
        count = len(self._found)
        if count < DRIFT_SAMPLES and now_ns - self._found[0][0] < DRIFT_NS:
            return 100
        ratios = [percent for _, percent, _ in self._found]
        if count >= 2 and self._found[-1][2] and self._found[-2][2]:
            return ratios[-1] if _beyond(ratios[-2:]) else 100
        newest = ratios[-max(count // 2, LEAST_SAMPLES) :]
        few = count < 2 * LEAST_SAMPLES
        if count < LEAST_SAMPLES or not (_beyond(newest) if few else _most_beyond(ratios)):
            return 100
        return min(newest, key=lambda percent: abs(percent - 100)) if few else int(median(newest))


def _beyond(ratios: list[int]) -> bool:
    """True where all are slower than expected, or all are faster."""
    return min(ratios) > 100 + DRIFT_PERCENT or max(ratios) < 100 - DRIFT_PERCENT


def _most_beyond(ratios: list[int]) -> bool:
    return median_low(ratios) > 100 + DRIFT_PERCENT or median_high(ratios) < 100 - DRIFT_PERCENT


UNBOUNDED = 1 << 62
KEPT_STEPS = 100
UNKNOWN_PERCENT = 200  # twice the model, until two steps were measured
LATE_SHARE = 8  # a late frame moves the expectation by 1/8 of its lateness, since transport is late now and then


class Slowness:
    """How slow steps get, in per cent of the cost model's time: the second slowest of the last KEPT_STEPS steps, since
    the slowest may be an outlier.
    """

    def __init__(self) -> None:
        self._percent: deque[int] = deque(maxlen=KEPT_STEPS)

    def observe(self, expected_ns: int, took_ns: int) -> None:
        """Record a step. expected_ns: its time by the cost model, above 0."""
        self._percent.append(max(100 * took_ns // expected_ns, 100))

    def forget(self) -> None:
        """Forget all steps, since the cost model has other times now."""
        self._percent.clear()

    @property
    def percent(self) -> int:
        """At least 100."""
        slowest = sorted(self._percent)[-2:]
        return slowest[0] if len(slowest) == 2 else UNKNOWN_PERCENT


class Gaps:
    """Tracks when frames arrive, how long steps take and until when the device is busy; `room_ns` says what a chat step
    may cost now.
    """

    def __init__(self, patience_ns: int) -> None:
        self._patience_ns = patience_ns
        self._period_ns: dict[int, int] = {}
        self._expected_ns: dict[int, int] = {}
        self._slowness = Slowness()
        self._served_ns = 0
        self._free_ns = 0

    def open(self, session: int, period_ns: int) -> None:
        self._period_ns[session] = period_ns

    def close(self, session: int) -> None:
        self._period_ns.pop(session, None)
        self._expected_ns.pop(session, None)

    def arrived(self, session: int, now_ns: int) -> None:
        """Record that a frame reached the service. An early frame shifts the expected arrivals at once, a late one by
        an eighth of its lateness; one that is late by half a period or more starts a new phase.
        """
        period_ns = self._period_ns.get(session)
        if period_ns is None:
            return
        late_ns = now_ns - self._expected_ns.get(session, now_ns)
        if 0 < late_ns < period_ns // 2:
            now_ns -= late_ns - late_ns // LATE_SHARE
        self._expected_ns[session] = now_ns + period_ns

    def begin(self, now_ns: int) -> None:
        """Record that a request begins to wait; patience counts from here."""
        self._served_ns = now_ns

    def served(self, now_ns: int, expected_ns: int, took_ns: int) -> None:
        """Record that a chat step ran. expected_ns: its time by the cost model; 0 when nothing was computed."""
        self._served_ns = now_ns
        if expected_ns > 0:
            self._slowness.observe(expected_ns, took_ns)

    def forget(self) -> None:
        """Forget how slow steps were, since the cost model has other times now."""
        self._slowness.forget()

    def launched(self, now_ns: int, expected_ns: int) -> None:
        """Record that a pass was launched, by control or chat; it runs after those in flight."""
        self._free_ns = max(self._free_ns, now_ns) + expected_ns

    def finished(self) -> None:
        """Record that no pass is in flight."""
        self._free_ns = 0

    def busy_ns(self, now_ns: int) -> int:
        """The time for which passes in flight still run."""
        return max(self._free_ns - now_ns, 0)

    def must_run(self, now_ns: int) -> bool:
        """True when chat has waited so long that one step goes first."""
        return now_ns - self._served_ns >= self._patience_ns

    def room_ns(self, now_ns: int, pass_at_ns: int | None = None) -> int:
        """The most a step may cost, by the cost model, to finish before the next expected frame; 0 when one is due.

        pass_at_ns: when a pass will run even if no frame arrives.
        """
        until_ns = min((self.next_ns(session, now_ns) for session in self._expected_ns), default=UNBOUNDED)
        until_ns = max(until_ns - now_ns, 0) if until_ns < UNBOUNDED else UNBOUNDED
        if pass_at_ns is not None:
            until_ns = min(until_ns, max(pass_at_ns - now_ns, 0))
        return 100 * until_ns // self._slowness.percent

    def wake_at_ns(self, now_ns: int) -> int:
        """When a step may become possible even if no frame arrives."""
        return min(self._served_ns + self._patience_ns, self.silent_at_ns(now_ns))

    def silent_at_ns(self, now_ns: int) -> int:
        """When the next session will count as silent if no frame of it arrives; UNBOUNDED where none will."""
        silent = (self._silent_ns(session) for session in self._expected_ns)
        return min((at for at in silent if at > now_ns), default=UNBOUNDED)

    def next_ns(self, session: int, now_ns: int) -> int:
        """When the next frame of a session is expected, earlier than now where it is late; UNBOUNDED where none is."""
        if session not in self._expected_ns or now_ns >= self._silent_ns(session):
            return UNBOUNDED
        return self._expected_ns[session]

    def _silent_ns(self, session: int) -> int:
        return self._expected_ns[session] + self._period_ns[session]


class ChatTurns:
    """Chat's room before the next frame. chunk: most rows of a prompt per pass."""

    def __init__(self, gaps: Gaps, times: ChunkTimes, chunk: int) -> None:
        self._gaps = gaps
        self._cost = CostModel(times)
        self._chunk = chunk

    def rows(self, now_ns: int, *, idle: bool, pass_at_ns: int | None) -> int:
        """Rows that chat's next pass may have; 0 where it must wait.

        Passes in flight come first. idle: control has nothing to run. pass_at_ns: when it
        will have, even if no frame arrives.
        """
        room_ns = self._gaps.room_ns(now_ns, pass_at_ns) - self._gaps.busy_ns(now_ns) if idle else 0
        if room_ns < self._cost.times.step_ns and not self._gaps.must_run(now_ns):
            return 0
        times = self._cost.times
        return max(1, min(self._chunk, (room_ns - times.step_ns) // max(times.row_ns, 1)))

    def expected_ns(self, prefill_rows: int, decode_rows: int) -> int:
        """The time of a pass of chat, by the cost model."""
        return self._cost.times.pass_ns(prefill_rows, decode_rows)

    def served(self, now_ns: int, sample: PassSample | None) -> None:
        """Record that a pass of chat ended; sample: None where its time is not known."""
        if sample is None:
            self._gaps.served(now_ns, 0, 0)
        else:
            self._gaps.served(now_ns, self.expected_ns(sample.prefills, sample.decodes), sample.ns)
            if self._cost.observe([sample], now_ns):
                self._gaps.forget()
