"""The frames of one session: at most one waiting, at most K in flight, those that finish; and their ring of K slots.

Each pass of a frame is the next of the session's program, which has K (contract.StageProgram). A frame *finishes* once
the passes after which it leaves are planned, and leaves when they are committed. That is after K, or earlier where it
drafts: when all of its tokens are verified, or after `max_passes`. A tick is one packed pass and `rounds - 1`
decode-only passes after it (scheduler/pace.py); where frames draft, every pass takes the frame that waits.

Two ways to advance the ring (ActionFlow section 3.3):
- rotate: a frame keeps its slot, and the slot of the next prefill advances; no bytes are moved.
- copy: a prefill always enters the first slot, and after each pass the KV of every frame in flight is
  copied to the following slot, as in the paper.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from edgeflow.contract import Pace, Speculation, StageProgram
from edgeflow.scheduler.pace import rounds_of, served_pace
from edgeflow.scheduler.plan import Departure, Frame, FrameRef, Leaving, Move, Outcome, Segment, SlotPosition


class Shift(str, Enum):
    """How the ring advances."""

    ROTATE = "rotate"
    COPY = "copy"


@dataclass(slots=True, kw_only=True, eq=False)
class FrameInFlight:
    """A frame in flight."""

    frame: FrameRef
    rows: int
    slot: int
    generation: int
    deadline_ns: int = 0
    expires_ns: int = 0
    speculation: Speculation | None = None
    """How its drafts are verified; None for a frame without drafts."""
    guess: SlotPosition | None = None
    """Where its first drafts are read; None = a constant."""
    stage: int = 0
    """The stage of its next pass."""
    length: int = 0
    """Rows of its KV in the slot. Like `stage`, it counts one token per pass in flight, the fewest that a pass can
    verify.
    """
    slack: int = 0
    """Further rows that the passes in flight may turn out to have verified."""
    verified: int = 0
    """Its verified tokens."""
    passes: int = 0
    """Passes that are planned."""
    committed: int = 0
    """Passes that are committed."""

    def leaves_after(self, stages: int) -> int:
        """Passes after which it leaves, with or without unverified tokens."""
        return self.speculation.most_passes(stages) if self.speculation else stages


class SlotRing:
    """The slots of one session: frames keep theirs, and the index of the next prefill rotates."""

    def __init__(self, slots: range) -> None:
        self.slots = slots
        self._claims = 0

    def claim(self) -> tuple[int, int]:
        """Slot and generation for a new prefill."""
        slot = self.slots[self._claims % len(self.slots)]
        self._claims += 1
        return slot, self._claims

    def advance(self, flights: list[FrameInFlight]) -> tuple[Move, ...]:  # noqa: ARG002 - nothing moves
        """Update the slots of the frames in flight after a pass; return the copies that the engine must make."""
        return ()


class CopyingRing(SlotRing):
    """A ring in which frames move to the next slot after each pass, last stage first so that nothing is overwritten."""

    def claim(self) -> tuple[int, int]:
        self._claims += 1
        return self.slots[0], self._claims

    def advance(self, flights: list[FrameInFlight]) -> tuple[Move, ...]:
        moves = []
        for flight in sorted(flights, key=lambda flight: -flight.slot):
            moves.append(Move(flight.slot, flight.slot + 1, flight.length + flight.slack))
            flight.slot += 1
        return tuple(moves)


RINGS = {Shift.ROTATE: SlotRing, Shift.COPY: CopyingRing}


class SessionQueue:
    """Decides what the next pass of one session contains. Integers only; time is an argument."""

    def __init__(
        self, session: int, epoch: int, ring: SlotRing, *, pace: Pace, program: StageProgram, drain_after_ns: int
    ) -> None:
        self.session = session
        self.epoch = epoch
        self.ring = ring
        self.stages = program.passes
        self.last_pass = -1
        self._program = program
        self._unrolled = program.unrolled
        self._most_drafts = program.drafts
        self._pace = served_pace(pace, program)
        self._rounds_left = 0
        self._drain_after_ns = drain_after_ns
        self._waiting: Frame | None = None
        self._flights: list[FrameInFlight] = []
        self._finishing: list[FrameInFlight] = []
        self._newest: FrameInFlight | None = None  # the last frame of this epoch to begin, whether or not it has left
        self._idle_since_ns: int | None = None

    @property
    def in_flight(self) -> int:
        return len(self._flights)

    @property
    def waiting(self) -> FrameRef | None:
        return self._waiting.ref if self._waiting else None

    @property
    def deadline_ns(self) -> int:
        """The earliest deadline of the frames waiting or in flight; 0 when there are none."""
        frames = [flight.deadline_ns for flight in self._flights]
        if self._waiting is not None:
            frames.append(self._waiting.deadline_ns)
        return min(frames, default=0)

    def change_pace(self, pace: Pace) -> None:
        """Change the pace from the next prefill on; frames in flight keep their order."""
        self._pace = served_pace(pace, self._program)

    @property
    def is_finishing(self) -> bool:
        """True while the last pass of some frame is planned and not committed."""
        return bool(self._finishing)

    @property
    def next_frame(self) -> FrameRef | None:
        """The frame that the next pass begins with, if there is one."""
        return None if self._rounds_left > 0 and self._flights else self.waiting

    def reject(self, frame: FrameRef) -> list[Departure]:
        """Drop the waiting frame if it is this one."""
        if self.waiting != frame:
            return []
        self._waiting = None
        return [Departure(frame, Leaving.REJECTED)]

    def offer(self, frame: Frame) -> list[Departure]:
        """Take a frame. The newest wins: an older one that is still waiting leaves as superseded."""
        if frame.ref.epoch < self.epoch:
            return [Departure(frame.ref, Leaving.EPOCH_CHANGED)]
        left = self.reset(frame.ref.epoch) if frame.ref.epoch > self.epoch else []
        if self._waiting is not None:
            left.append(Departure(self._waiting.ref, Leaving.SUPERSEDED))
        self._waiting = frame
        return left

    def reset(self, epoch: int, why: Leaving = Leaving.EPOCH_CHANGED) -> list[Departure]:
        """Drop every frame; their slots are free at once, since the device works in order."""
        left = [self._departure(flight, why) for flight in (*self._flights, *self._finishing)]
        if self._waiting is not None:
            left.append(Departure(self._waiting.ref, why))
        self._waiting = None
        self._flights.clear()
        self._finishing.clear()
        self._newest = None
        self._rounds_left = 0
        self._idle_since_ns = None
        self.epoch = epoch
        return left

    def runnable_rows(self, now_ns: int) -> int:
        """Rows of this session's next pass; 0 when it has nothing to run now."""
        in_flight = sum(map(self._next_rows, self._flights))
        if self._rounds_left > 0 and in_flight:
            return in_flight
        if self._waiting is not None:
            return self._waiting.rows + self._drafts + in_flight
        return in_flight if in_flight and self._may_drain(now_ns) else 0

    def wake_at_ns(self) -> int | None:
        """When a drain becomes due, if nothing else happens before."""
        if self._idle_since_ns is None or not self._flights or self._waiting is not None:
            return None
        return self._idle_since_ns + self._drain_after_ns

    @property
    def may_be_whole(self) -> bool:
        """True where a frame shares passes with no other of this session, and its steps overwrite each other."""
        return self._pace == Pace(1) and self._program.step_rows > 0

    def take(self, *, whole: bool = False) -> tuple[list[tuple[Segment[FrameRef], FrameInFlight]], tuple[Move, ...]]:
        """Advance by one pass; return its segments, each with what `commit` knows it by, and the slot copies after.

        whole: the frame that waits takes all of its passes in this one.
        """
        if self._rounds_left > 0 and self._flights:
            self._rounds_left -= 1
        elif self._waiting is not None:
            self._admit(self._waiting)
        taken = [(self._advance(flight), flight) for flight in self._flights]
        if whole:
            self._rounds_left = 0
            taken = [(replace(segment, passes=self.stages), flight) for segment, flight in taken]
            for flight in self._flights:
                flight.stage = self.stages
        self._move_finishing()
        return taken, self.ring.advance(self._flights)

    def commit(self, flight: FrameInFlight, segment: Segment[FrameRef], outcome: Outcome[FrameRef]) -> None:
        """Record what a segment gave; `departures` follows when all those of a pass are recorded."""
        verified = len(outcome.tokens) if self._most_drafts else segment.passes
        flight.verified = min(flight.verified + verified, self.stages)
        # The plan has already counted one token of this pass; its further drafts are certain now, accepted or not.
        if self._most_drafts:
            flight.stage += verified - 1
            flight.length += verified - 1
        flight.slack -= segment.drafts
        flight.committed += 1
        if verified > 1:
            self._move_finishing()

    def departures(self, now_ns: int) -> list[Departure]:
        """The frames that leave now that a pass is committed, oldest first.

        With drafts, the newest frame that is done overtakes those before it.
        """
        done = [flight for flight in (*self._finishing, *self._flights) if self._done(flight)]
        if not done:
            return []
        newest = max(done, key=_seq)
        left: list[Departure] = []
        for flight in sorted((*self._finishing, *self._flights), key=_seq):
            late = self._too_old(flight, now_ns)
            if newest.speculation and flight.frame.seq < newest.frame.seq:
                left.append(self._departure(flight, Leaving.EXPIRED if late else Leaving.OVERTAKEN))
            elif flight in done:
                left.append(self._departure(flight, Leaving.EXPIRED if late else Leaving.DONE))
        self._forget(left)
        return left

    def expire(self, now_ns: int) -> list[Departure]:
        """The drafted frames that are too old to be answered while a newer one is in flight."""
        late = [flight for flight in (*self._finishing, *self._flights) if self._too_old(flight, now_ns)]
        left = [self._departure(flight, Leaving.EXPIRED) for flight in late]
        self._forget(left)
        return left

    def _done(self, flight: FrameInFlight) -> bool:
        return flight.verified >= self.stages or flight.committed >= flight.leaves_after(self.stages)

    def _too_old(self, flight: FrameInFlight, now_ns: int) -> bool:
        """True for a drafted frame that is past its age limit and not the newest that has begun."""
        newer = self._newest is not None and flight.frame < self._newest.frame
        return bool(flight.speculation and newer and 0 < flight.expires_ns <= now_ns)

    def _departure(self, flight: FrameInFlight, why: Leaving) -> Departure:
        return Departure(flight.frame, why, flight.committed, flight.verified)

    def _forget(self, left: list[Departure]) -> None:
        if left:
            gone = {departure.frame for departure in left}
            self._flights = [flight for flight in self._flights if flight.frame not in gone]
            self._finishing = [flight for flight in self._finishing if flight.frame not in gone]

    def _move_finishing(self) -> None:
        """Set apart the frames for which no further pass is needed."""
        stages = self.stages
        finishing = [
            flight for flight in self._flights if flight.stage >= stages or flight.passes >= flight.leaves_after(stages)
        ]
        if finishing:
            self._finishing += finishing
            self._flights = [flight for flight in self._flights if flight not in finishing]

    @property
    def _drafts(self) -> int:
        """Draft rows after the next frame's prompt."""
        return self._most_drafts if self._pace.speculation else 0

    def _admit(self, frame: Frame) -> None:
        slot, generation = self.ring.claim()
        before = self._newest
        self._newest = FrameInFlight(
            frame=frame.ref,
            rows=frame.rows,
            slot=slot,
            generation=generation,
            deadline_ns=frame.deadline_ns,
            expires_ns=frame.expires_ns,
            speculation=self._pace.speculation,
            # Scenes change slowly: the tokens of the frame before, read where its answer begins, are the best drafts.
            guess=SlotPosition(before.slot, before.rows) if before and self._pace.speculation else None,
        )
        self._flights.append(self._newest)
        self._waiting = None
        self._rounds_left = 0 if self._pace.speculation else rounds_of(self._pace.depth, self.stages) - 1
        self._idle_since_ns = None

    def _next_rows(self, flight: FrameInFlight) -> int:
        """Rows of a frame's next pass, which is not its prompt's."""
        return self.stages - flight.stage if flight.speculation else self._unrolled[flight.stage].rows

    def _advance(self, flight: FrameInFlight) -> Segment[FrameRef]:
        stage = self._unrolled[flight.stage]
        rows, samples = stage.rows or flight.rows, stage.rows or 1
        drafts = self.stages - flight.stage - 1 if flight.speculation else 0
        segment = Segment(
            sequence=flight.frame,
            slot=flight.slot,
            generation=flight.generation,
            start=flight.length + flight.slack,
            length=rows + drafts,
            stage=flight.stage,
            samples=samples + drafts,
            certain=flight.slack == 0,
            guess=None if flight.stage else flight.guess,
            tolerance_bins=flight.speculation.tolerance_bins if flight.speculation else 0,
            drafts=drafts,
            group=stage.group,
            advances=stage.advances,
        )
        if stage.advances:
            flight.length += rows
        flight.slack += drafts
        flight.stage += 1
        flight.passes += 1
        return segment

    def _may_drain(self, now_ns: int) -> bool:
        if any(flight.speculation for flight in self._flights):
            return True  # their age counts for more than a full pass
        if self._idle_since_ns is None:
            self._idle_since_ns = now_ns
        return now_ns - self._idle_since_ns >= self._drain_after_ns


def _seq(flight: FrameInFlight) -> int:
    """The order of frames in flight, which are all of one epoch."""
    return flight.frame.seq
