"""Decides which rows run next, for several sessions side by side, each with its own ring of slots.

No torch, no threads, no clock: the caller passes in the time, and gets back what to run and which frames leave.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from edgeflow.contract import Pace, StageProgram
from edgeflow.scheduler.cost import UNBOUNDED
from edgeflow.scheduler.plan import Departure, Frame, FrameRef, Leaving, Move, Outcome, Pass, Segment
from edgeflow.scheduler.ring import FrameInFlight
from edgeflow.scheduler.session import RINGS, SessionQueue, Shift
from edgeflow.scheduler.turns import EarlyFrames, EarlyWork, TokenBucket
from edgeflow_client.errors import RETRY_AFTER_MS, AlreadyExists, ResourceExhausted

ROW_BUDGET = 1024
ROBOTS_THAT_STEP = 2


def row_budget_of(configured: int | None, prompt_rows: int, steps: int, step_rows: int) -> int:
    """Most rows of a pass: as configured, or else enough for what the frames of two robots need in one.

    prompt_rows: rows of the longest prompt. steps, step_rows: denoising steps of a frame, and rows of each; 0 where
    frames have none, whose rows after the prompt are few. A pipelined robot has a prompt and a frame in each of the
    steps.
    """
    return configured or max(ROW_BUDGET, ROBOTS_THAT_STEP * (prompt_rows + steps * step_rows) if step_rows else 0)


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """Sizes the scheduler works within."""

    stages: int
    """Most passes of any program, which is the number of slots of each ring."""
    max_sessions: int
    """The number of rings."""
    row_budget: int
    """Most rows per pass (one session alone may exceed it)."""
    drain_after_ns: int
    """How long frames in flight wait for a new frame before decode-only passes run."""
    shift: Shift = Shift.ROTATE

    @property
    def slots(self) -> int:
        return self.stages * self.max_sessions


@dataclass(slots=True)
class SchedulerCounts:
    """Counts since the start."""

    passes: int = 0
    rows: int = 0
    full_passes: int = 0
    """Passes in which some session ran all of its stages."""
    offered: int = 0
    left: dict[Leaving, int] = field(default_factory=lambda: dict.fromkeys(Leaving, 0))


class PassPlanner(Protocol):
    """The interface between a control loop and its scheduler. Scheduler explains each method. A recording listens in
    between, and a replay answers in its place.
    """

    @property
    def counts(self) -> SchedulerCounts: ...

    @property
    def holds_frames(self) -> bool: ...

    def open(
        self, session: int, epoch: int, pace: Pace, program: StageProgram | None, turns: TokenBucket | None
    ) -> None: ...

    def change_pace(self, session: int, pace: Pace) -> None: ...

    def close(self, session: int) -> list[Departure]: ...

    def reset(self, session: int, epoch: int) -> list[Departure]: ...

    def offer(self, frame: Frame) -> list[Departure]: ...

    def next_frames(self, now_ns: int) -> list[FrameRef]: ...

    def is_finishing(self, session: int) -> bool: ...

    def reject(self, frame: FrameRef) -> list[Departure]: ...

    def plan(self, now_ns: int) -> Pass[FrameRef] | None: ...

    def commit(self, number: int, outcomes: Sequence[Outcome[FrameRef]], now_ns: int) -> list[Departure]: ...

    def expire(self, now_ns: int) -> list[Departure]: ...

    def wake_at_ns(self, now_ns: int) -> int | None: ...


class Scheduler:
    """Plans passes: offer → plan → (the engine runs) → commit. Each offered frame leaves once, as a Departure.

    whole: a frame whose steps overwrite each other takes all of them in one pass, where one session alone has something
    to run and no frames share passes. early: the gaps for frames before their turn (scheduler/turns.py); None = all
    of the time that due frames leave.
    """

    def __init__(self, limits: SchedulerLimits, *, whole: bool = False) -> None:
        self.limits = limits
        self._whole = whole
        self.early: EarlyFrames | None = None
        self.counts = SchedulerCounts()
        self._sessions: dict[int, SessionQueue] = {}
        self._free_rings = list(range(limits.max_sessions))[::-1]
        self._launched: dict[int, list[tuple[SessionQueue, Segment[FrameRef], FrameInFlight]]] = {}

    def open(
        self,
        session: int,
        epoch: int,
        pace: Pace,
        program: StageProgram | None = None,
        turns: TokenBucket | None = None,
    ) -> None:
        """Give a session its ring. ResourceExhausted when every ring is taken.

        program: of its frames; None = tokens, as many as the ring has slots. ValueError where it has more passes.
        turns: of its frames; None = every frame is due.
        """
        program = program or StageProgram.tokens(self.limits.stages)
        if program.passes > self.limits.stages:
            raise ValueError(f"a program of {program.passes} passes does not fit a ring of {self.limits.stages} slots")
        if session in self._sessions:
            raise AlreadyExists(f"session {session} is open already", field="session")
        if not self._free_rings:
            raise ResourceExhausted(
                f"all {self.limits.max_sessions} sessions are in use",
                field="max_sessions",
                retry_after_ms=RETRY_AFTER_MS,
            )
        first = self._free_rings.pop() * self.limits.stages
        ring = RINGS[self.limits.shift](range(first, first + program.passes))
        self._sessions[session] = SessionQueue(
            session,
            epoch,
            ring,
            pace=pace,
            program=program,
            drain_after_ns=self.limits.drain_after_ns,
            turns=turns,
        )

    def change_pace(self, session: int, pace: Pace) -> None:
        """Change the pace from the session's next prefill on; unknown sessions are ignored."""
        queue = self._sessions.get(session)
        if queue is not None:
            queue.change_pace(pace)

    def close(self, session: int) -> list[Departure]:
        """Free the session's ring; all its frames leave. Unknown sessions are ignored."""
        queue = self._sessions.pop(session, None)
        if queue is None:
            return []
        self._free_rings.append(queue.ring.slots[0] // self.limits.stages)
        return self._depart(queue.reset(queue.epoch, Leaving.CLOSED))

    def reset(self, session: int, epoch: int) -> list[Departure]:
        """Start a new epoch: frames that are waiting, in flight or not yet committed leave. Old epochs are ignored."""
        queue = self._sessions.get(session)
        if queue is None or epoch <= queue.epoch:
            return []
        return self._depart(queue.reset(epoch))

    def offer(self, frame: Frame) -> list[Departure]:
        """Take a frame; the newest wins. A frame of a newer epoch starts that epoch."""
        self.counts.offered += 1
        queue = self._sessions.get(frame.ref.session)
        if queue is None:
            return self._depart([Departure(frame.ref, Leaving.CLOSED)])
        return self._depart(queue.offer(frame))

    def next_frames(self, now_ns: int) -> list[FrameRef]:
        """The frames that the next pass begins with, were it planned now."""
        chosen, early = self._choose(now_ns)
        frames = [queue.next_frame(now_ns, early=early) for queue in chosen]
        return [frame for frame in frames if frame is not None]

    def is_finishing(self, session: int) -> bool:
        """True while the last pass of some frame of a session is planned and not committed."""
        queue = self._sessions.get(session)
        return queue is not None and queue.is_finishing

    @property
    def holds_frames(self) -> bool:
        """True while frames wait for the end of a whole pass."""
        return self._runs_whole and any(queue.waiting is not None for queue in self._sessions.values())

    @property
    def _runs_whole(self) -> bool:
        return any(segment.passes > 1 for launched in self._launched.values() for _, segment, _ in launched)

    def reject(self, frame: FrameRef) -> list[Departure]:
        """Drop a waiting frame that the policy rejects; any other stays."""
        queue = self._sessions.get(frame.session)
        return self._depart(queue.reject(frame)) if queue is not None else []

    def plan(self, now_ns: int) -> Pass[FrameRef] | None:
        """The next pass, or None when there is nothing to run now (see wake_at_ns)."""
        chosen, early = self._choose(now_ns)
        if not self._runs_whole:
            for queue in self._sessions.values():
                if queue not in chosen:
                    queue.pass_over(now_ns)
        if not chosen:
            return None
        launched: list[tuple[SessionQueue, Segment[FrameRef], FrameInFlight]] = []
        moves: list[Move] = []
        number = self.counts.passes
        full, whole = False, self._may_be_whole(chosen, now_ns, early)
        for queue in chosen:
            queue.last_pass = number
            if queue.next_frame(now_ns, early=early) is not None:
                queue.last_begun = number
            taken, its_moves = queue.take(now_ns, early=early, whole=whole)
            launched += [(queue, segment, flight) for segment, flight in taken]
            moves += its_moves
            full = full or sum(segment.passes for segment, _ in taken) == queue.stages
        # Prompts first and then ascending slots, so that kernels can batch decode rows of neighbouring slots.
        launched.sort(key=lambda each: (each[1].stage > 0, each[1].slot))
        planned = Pass(number, tuple(segment for _, segment, _ in launched), tuple(moves))
        self._launched[number] = launched
        self.counts.passes += 1
        self.counts.rows += planned.rows
        self.counts.full_passes += full
        return planned

    def commit(self, number: int, outcomes: Iterable[Outcome[FrameRef]], now_ns: int = 0) -> list[Departure]:
        """Record what each segment of pass `number` gave; the frames that leave now, those that are done among them.

        Frames that have left since stay away. now_ns: for frames that expire; 0 = none does.
        """
        queues: dict[int, SessionQueue] = {}
        for (queue, segment, flight), outcome in zip(self._launched.pop(number), outcomes, strict=True):
            queue.commit(flight, segment, outcome)
            queues[id(queue)] = queue
        return self._depart([each for queue in queues.values() for each in queue.departures(now_ns)])

    def expire(self, now_ns: int) -> list[Departure]:
        """The frames that are too old to be answered while a newer one is in flight, or early and too old to wait for
        their turn; call before `plan`.
        """
        return self._depart([each for queue in self._sessions.values() for each in queue.expire(now_ns)])

    def wake_at_ns(self, now_ns: int) -> int | None:
        """When plan() will have something to run even if nothing arrives."""
        times = [queue.wake_at_ns(now_ns) for queue in self._sessions.values()]
        if self.early is not None and any(queue.has_frames for queue in self._sessions.values()):
            times.append(self.early.wake_at_ns(now_ns))
        return min((time for time in times if time is not None and time < UNBOUNDED), default=None)

    def _choose(self, now_ns: int) -> tuple[list[SessionQueue], bool]:
        """Choose as many sessions as fit the row budget: earliest deadline first, then least recently served. Where
        nothing is due, early frames run, of the least recently served session first; then True.

        None while a whole pass runs: the frame that comes next would be an old one by its end.
        """
        if self._runs_whole:
            return [], False
        queues = self._sessions.values()
        order = sorted(queues, key=lambda each: (each.deadline_ns, each.last_pass, each.session))
        if due := self._fitting(order, now_ns, early=False):
            return due, False
        return self._fitting(sorted(queues, key=lambda each: (each.last_begun, each.session)), now_ns, early=True), True

    def _fitting(self, queues: Iterable[SessionQueue], now_ns: int, *, early: bool) -> list[SessionQueue]:
        """The first of these sessions that fit the row budget; early frames must also end in time."""
        chosen: list[SessionQueue] = []
        rows = 0
        for queue in queues:
            wanted = queue.runnable_rows(now_ns, early=early)
            # The first session always runs, even if it exceeds the budget by itself: it would wait forever otherwise.
            fits = wanted and (not chosen or rows + wanted <= self.limits.row_budget)
            if fits and (not early or self._ends_in_time([*chosen, queue], now_ns)):
                chosen.append(queue)
                rows += wanted
        return chosen

    def _ends_in_time(self, queues: list[SessionQueue], now_ns: int) -> bool:
        """True if the frames of these sessions, run together, leave before the next due frame of any other comes."""
        if self.early is None:
            return True
        works = [queue.early_work(now_ns) for queue in queues]
        work = EarlyWork(
            sum(each.prefills for each in works),
            sum(each.decodes for each in works),
            max(each.passes for each in works),
            whole=self._may_be_whole(queues, now_ns, early=True),
        )
        end_ns = self.early.end_ns(work, now_ns)
        return all(end_ns <= self._next_due_ns(each, now_ns) for each in self._sessions.values() if each not in queues)

    def _next_due_ns(self, queue: SessionQueue, now_ns: int) -> int:
        """When a session that keeps its rate will next have something due: a frame that is expected, or a drain."""
        if self.early is None or queue.is_ahead(now_ns):
            return UNBOUNDED
        due_ns = max(queue.turn_ns(now_ns), self.early.next_ns(queue.session, now_ns))
        drain_ns = None if queue.rests else queue.wake_at_ns(now_ns)
        return due_ns if drain_ns is None else min(due_ns, drain_ns)

    def _may_be_whole(self, chosen: list[SessionQueue], now_ns: int, early: bool) -> bool:
        if not self._whole or not all(queue.may_be_whole for queue in self._sessions.values()):
            return False
        busy = (
            chosen if early else [each for each in self._sessions.values() if each.runnable_rows(now_ns, early=False)]
        )
        return len(busy) == 1 and not chosen[0].in_flight

    def _depart(self, left: list[Departure]) -> list[Departure]:
        for departure in left:
            self.counts.left[departure.reason] += 1
        return left
