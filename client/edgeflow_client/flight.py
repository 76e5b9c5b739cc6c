"""Frames in flight: their capture times and poses, their outcomes, and the time in which the robot was held."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass

import numpy as np

from edgeflow_client.pose import Pose
from edgeflow_client.types import Disposition

MAX_IN_FLIGHT = 512  # frames that the service never answers must not accumulate
AGES_KEPT = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """A snapshot. Every offered frame is in flight or has exactly one disposition."""

    offered: int
    """Frames given to `push`."""
    in_flight: int
    """Frames without an outcome yet."""
    acted: int
    """Frames answered by an action."""
    superseded: int
    """Frames replaced by a newer one, here or in the service."""
    overtaken: int
    """The superseded frames that were in flight on the device, in Mode.SPECULATIVE."""
    rejected: int
    """Rejected frames; last_refusal has the reason."""
    dropped: int
    """Frames that left without an action, including those of lost streams."""
    actions: int
    """Accepted actions."""
    ignored: int
    """Actions of another epoch, out of order, while a reset was needed, continuing a chunk that a HOLD ended, or made
    for a robot at rest while it moves.
    """
    too_old: int
    """Actions beyond their age limit on arrival."""
    late: int
    """Chunks that did not fit the chunk in execution on arrival (`Action.late`)."""
    late_played: int
    """Late chunks that were executed because no row of another one was due."""
    holds: int
    """HOLD and STOP directives."""
    steps: int
    """Actions that became the directive; each row of a chunk counts."""
    reconnects: int
    """Streams after the first."""
    age_p50_ns: int
    """Median age of the last AGES_KEPT accepted actions, from capture to receipt."""
    age_p99_ns: int
    """The same, 99th percentile."""
    age_max_ns: int
    """The same, largest."""
    latency_at_execution_p50_ns: int
    """Median age of the frame when a row of its answer was executed, of the last AGES_KEPT rows."""
    latency_at_execution_p99_ns: int
    """The same, 99th percentile."""
    latency_at_execution_max_ns: int
    """The same, largest of all rows."""
    held_ns: int
    """Time in HOLD or STOP after the first action; between a reset and the next action nothing counts."""
    directed_ns: int
    """Time since the first action that counts: with an action, or in HOLD or STOP."""
    last_refusal: str
    """Why the newest rejected frame was rejected; empty without one."""

    @property
    def held_share(self) -> float:
        """Share of the time since the first action in which the robot was held; 0 before."""
        return self.held_ns / self.directed_ns if self.directed_ns else 0.0


class HeldTime:
    """The time in HOLD or STOP, from the first action of an episode to its end; several episodes add up."""

    def __init__(self) -> None:
        self._held_ns = self._acted_ns = 0  # of the finished stretches
        self._holds: bool | None = None  # in the present stretch; None between episodes
        self._since_ns = 0

    def change(self, now_ns: int, *, holds: bool) -> None:
        """The robot is held, or acts, from now on. HOLD before an episode's first action does not count."""
        if holds != self._holds and not (holds and self._holds is None):
            self.end(now_ns)
            self._holds, self._since_ns = holds, now_ns

    def end(self, now_ns: int) -> None:
        """The episode ends."""
        self._held_ns, self._acted_ns = self.until(now_ns)
        self._holds = None

    def until(self, now_ns: int) -> tuple[int, int]:
        """Time in HOLD or STOP, and time with an action, in nanoseconds."""
        if self._holds is None:
            return self._held_ns, self._acted_ns
        lasted_ns = max(now_ns - self._since_ns, 0)
        return self._held_ns + lasted_ns * self._holds, self._acted_ns + lasted_ns * (not self._holds)


@dataclass(frozen=True, slots=True)
class Taken:
    """A frame in flight: its capture time on the robot's clock and the pose of the tool."""

    stamp_ns: int
    pose: Pose | None


class Flight:
    """Numbers frames from 1 and stores those in flight, at most MAX_IN_FLIGHT."""

    def __init__(self) -> None:
        self.last_seq = 0
        self.last_refusal = ""
        self.actions = self.ignored = self.too_old = self.late = self.late_played = self.holds = self.steps = (
            self.opens
        ) = self.overtaken = 0
        self._taken: dict[int, Taken] = {}
        self._left: Counter[Disposition] = Counter()
        self._ages_ns: deque[int] = deque(maxlen=AGES_KEPT)
        self._latencies_ns: deque[int] = deque(maxlen=AGES_KEPT)
        self._longest_ns = 0
        self.held = HeldTime()

    def offer(self, stamp_ns: int, pose: Pose | None) -> int:
        """Add a frame and return its number."""
        self.last_seq += 1
        self._taken[self.last_seq] = Taken(stamp_ns, pose)
        if len(self._taken) > MAX_IN_FLIGHT:
            self.leave(next(iter(self._taken)), Disposition.DROPPED)
        return self.last_seq

    def find(self, seq: int) -> Taken | None:
        """The frame with this number, if it is in flight."""
        return self._taken.get(seq)

    def leave(self, seq: int, disposition: Disposition, last_seq: int = 0, *, overtaken: bool = False) -> None:
        """Remove the frames seq to last_seq; those that left before keep their disposition.

        overtaken: they were in flight on the device, and a newer one was answered first.
        """
        for number in [seq] if last_seq <= seq else [n for n in self._taken if seq <= n <= last_seq]:
            if self._taken.pop(number, None) is not None:
                self._left[disposition] += 1
                self.overtaken += overtaken

    def leave_all(self) -> list[int]:
        """Drop all frames in flight, whose stream is lost; returns their numbers."""
        lost = list(self._taken)
        self._left[Disposition.DROPPED] += len(lost)
        self._taken.clear()
        return lost

    def acted_on(self, age_ns: int) -> None:
        """Count an accepted action and its age."""
        self.actions += 1
        self._ages_ns.append(age_ns)

    def executed(self, age_ns: int) -> None:
        """Count a row that is executed, and the age of its frame."""
        self.steps += 1
        self._latencies_ns.append(age_ns)
        self._longest_ns = max(self._longest_ns, age_ns)

    def statistics(self, now_ns: int) -> Statistics:
        ages_ns = np.array(self._ages_ns or [0])
        p50, p99 = np.percentile(ages_ns, [50, 99])
        latency_p50, latency_p99 = np.percentile(self._latencies_ns or [0], [50, 99])
        held_ns, acted_ns = self.held.until(now_ns)
        return Statistics(
            offered=self.last_seq,
            in_flight=len(self._taken),
            acted=self._left[Disposition.ACTED],
            superseded=self._left[Disposition.SUPERSEDED],
            overtaken=self.overtaken,
            rejected=self._left[Disposition.REJECTED],
            dropped=self._left[Disposition.DROPPED],
            actions=self.actions,
            ignored=self.ignored,
            too_old=self.too_old,
            late=self.late,
            late_played=self.late_played,
            holds=self.holds,
            steps=self.steps,
            reconnects=max(self.opens - 1, 0),
            age_p50_ns=round(p50),
            age_p99_ns=round(p99),
            age_max_ns=int(ages_ns.max()),
            latency_at_execution_p50_ns=round(latency_p50),
            latency_at_execution_p99_ns=round(latency_p99),
            latency_at_execution_max_ns=self._longest_ns,
            held_ns=held_ns,
            directed_ns=held_ns + acted_ns,
            last_refusal=self.last_refusal,
        )
