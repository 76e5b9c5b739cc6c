"""Decides which rows run next, for several sessions side by side, each with its own ring of slots.

No torch, no threads, no clock: the caller passes in the time, and gets back what to run and which frames leave.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from edgeflow.errors import RETRY_AFTER_MS, AlreadyExists, ResourceExhausted
from edgeflow.scheduler.depth import rounds_of
from edgeflow.scheduler.plan import Departure, Frame, FrameRef, Leaving, Move, Pass, Segment
from edgeflow.scheduler.ring import Shift, make_ring
from edgeflow.scheduler.session import SessionQueue


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """Sizes the scheduler works within.

    stages: K. max_sessions: rings of K slots. row_budget: most rows per pass (one session alone may exceed it).
    drain_after_ns: how long frames in flight wait for a new frame before decode-only passes run.
    """

    stages: int
    max_sessions: int
    row_budget: int
    drain_after_ns: int
    shift: Shift = Shift.ROTATE

    @property
    def slots(self) -> int:
        return self.stages * self.max_sessions


@dataclass(slots=True)
class SchedulerCounts:
    """Counts since the start. full_passes: passes in which some session ran all K stages."""

    passes: int = 0
    rows: int = 0
    full_passes: int = 0
    offered: int = 0
    left: dict[Leaving, int] = field(default_factory=lambda: dict.fromkeys(Leaving, 0))


class Scheduler:
    """Plans passes: offer → plan → (the engine runs) → commit. Each offered frame leaves once, as a Departure."""

    def __init__(self, limits: SchedulerLimits) -> None:
        self.limits = limits
        self.counts = SchedulerCounts()
        self._sessions: dict[int, SessionQueue] = {}
        self._free_rings = list(range(limits.max_sessions))[::-1]
        self._landing: dict[int, list[FrameRef]] = {}

    def open(self, session: int, epoch: int, depth: int) -> None:
        """Give a session its ring; depth 1 is serial, K pipelined. ResourceExhausted when every ring is taken."""
        if session in self._sessions:
            raise AlreadyExists(f"session {session} is open already", field="session")
        if not self._free_rings:
            raise ResourceExhausted(
                f"all {self.limits.max_sessions} sessions are in use",
                field="max_sessions",
                retry_after_ms=RETRY_AFTER_MS,
            )
        stages = self.limits.stages
        first = self._free_rings.pop() * stages
        ring = make_ring(self.limits.shift, range(first, first + stages))
        rounds = rounds_of(depth, stages)
        self._sessions[session] = SessionQueue(session, epoch, ring, rounds, self.limits.drain_after_ns)

    def change_depth(self, session: int, depth: int) -> None:
        """Change the depth from the session's next prefill on; unknown sessions are ignored."""
        queue = self._sessions.get(session)
        if queue is not None:
            queue.change_rounds(rounds_of(depth, self.limits.stages))

    def close(self, session: int) -> list[Departure]:
        """Free the session's ring; all its frames leave. Unknown sessions are ignored."""
        queue = self._sessions.pop(session, None)
        if queue is None:
            return []
        self._free_rings.append(queue.ring.slots[0] // self.limits.stages)
        return self._depart(queue.reset(queue.epoch, Leaving.CLOSED) + self._recall(session, Leaving.CLOSED))

    def reset(self, session: int, epoch: int) -> list[Departure]:
        """Start a new epoch: frames that are waiting, in flight or not yet committed leave. Old epochs are ignored."""
        queue = self._sessions.get(session)
        if queue is None or epoch <= queue.epoch:
            return []
        return self._depart(queue.reset(epoch) + self._recall(session, Leaving.EPOCH_CHANGED))

    def offer(self, frame: Frame) -> list[Departure]:
        """Take a frame; the newest wins. A frame of a newer epoch starts that epoch."""
        self.counts.offered += 1
        queue = self._sessions.get(frame.ref.session)
        if queue is None:
            return self._depart([Departure(frame.ref, Leaving.CLOSED)])
        newer = frame.ref.epoch > queue.epoch
        left = queue.offer(frame)
        if newer:
            left += self._recall(frame.ref.session, Leaving.EPOCH_CHANGED)
        return self._depart(left)

    def plan(self, now_ns: int) -> Pass | None:
        """The next pass, or None when there is nothing to run now (see wake_at_ns)."""
        chosen = self._choose(now_ns)
        if not chosen:
            return None
        segments: list[Segment] = []
        finished: list[Segment] = []
        moves: list[Move] = []
        number = self.counts.passes
        full = False
        for queue in chosen:
            queue.last_pass = number
            its_segments, its_finished, its_moves = queue.take()
            segments += its_segments
            finished += its_finished
            moves += its_moves
            full = full or len(its_segments) == self.limits.stages
        self._landing[number] = [segment.frame for segment in finished]
        segments.sort(key=lambda segment: (segment.stage > 0, segment.slot))
        planned = Pass(number, tuple(segments), tuple(finished), tuple(moves))
        self.counts.passes += 1
        self.counts.rows += planned.rows
        self.counts.full_passes += full
        return planned

    def commit(self, number: int) -> list[Departure]:
        """Record that pass `number` has run: frames it finished leave as done, unless recalled meanwhile."""
        return self._depart([Departure(frame, Leaving.DONE) for frame in self._landing.pop(number)])

    def wake_at_ns(self) -> int | None:
        """When plan() will have something to run even if nothing arrives."""
        times = [queue.wake_at_ns() for queue in self._sessions.values()]
        return min((time for time in times if time is not None), default=None)

    def _choose(self, now_ns: int) -> list[SessionQueue]:
        """Choose as many sessions as fit the row budget: earliest deadline first, then least recently served."""
        chosen: list[SessionQueue] = []
        rows = 0
        for queue in sorted(self._sessions.values(), key=_urgency):
            wanted = queue.runnable_rows(now_ns)
            if wanted and (not chosen or rows + wanted <= self.limits.row_budget):
                chosen.append(queue)
                rows += wanted
        return chosen

    def _recall(self, session: int, why: Leaving) -> list[Departure]:
        left: list[Departure] = []
        for number, frames in self._landing.items():
            left += [Departure(frame, why) for frame in frames if frame.session == session]
            self._landing[number] = [frame for frame in frames if frame.session != session]
        return left

    def _depart(self, left: list[Departure]) -> list[Departure]:
        for departure in left:
            self.counts.left[departure.why] += 1
        return left


def _urgency(queue: SessionQueue) -> tuple[int, int, int]:
    return queue.deadline_ns, queue.last_pass, queue.session
