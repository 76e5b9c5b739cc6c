"""The frames of one session: at most one waiting, at most K in flight, and those that finish.

Each pass of a frame is the next of the session's program, which has K (contract.StageProgram). A frame *finishes* once
the passes after which it leaves are planned, and leaves when they are committed. That is after K, or earlier where it
drafts: when all of its tokens are verified, or after `max_passes`. A tick is one packed pass and `rounds - 1`
decode-only passes after it (scheduler/pace.py); where frames draft, every pass takes the frame that waits.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum

from edgeflow.contract import Pace, StageProgram
from edgeflow.scheduler.pace import rounds_of, served_pace
from edgeflow.scheduler.plan import Departure, Frame, FrameRef, Leaving, Move, Outcome, Segment, SlotPosition
from edgeflow.scheduler.ring import CopyingRing, FrameInFlight, SlotRing
from edgeflow.scheduler.turns import EarlyWork, TokenBucket


class Shift(str, Enum):
    """How the ring advances."""

    ROTATE = "rotate"
    COPY = "copy"


RINGS = {Shift.ROTATE: SlotRing, Shift.COPY: CopyingRing}


class SessionQueue:
    """Decides what the next pass of one session contains. Integers only; time is an argument."""

    def __init__(
        self,
        session: int,
        epoch: int,
        ring: SlotRing,
        *,
        pace: Pace,
        program: StageProgram,
        drain_after_ns: int,
        turns: TokenBucket | None = None,
    ) -> None:
        self.session = session
        self.epoch = epoch
        self.ring = ring
        self.stages = program.passes
        self.last_pass = -1
        self.last_begun = -1  # the pass in which its last frame began
        self._turns = turns
        self._last_early = False  # the last frame to begin was
        self._passed_over = False
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
        """The earliest deadline of the frames waiting or in flight, without early ones; 0 when there are none."""
        frames = [flight.deadline_ns for flight in self._flights if not flight.early]
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

    def next_frame(self, now_ns: int, *, early: bool) -> FrameRef | None:
        """The frame that the next pass begins with, if there is one. early: as in `runnable_rows`."""
        return self.waiting if self._begins(now_ns, early) else None

    def turn_ns(self, now_ns: int) -> int:
        """When it has a turn; `now_ns` or earlier for now."""
        return now_ns if self._turns is None else self._turns.ready_at_ns(now_ns)

    def is_ahead(self, now_ns: int) -> bool:
        """True if its robot is ahead of the declared rate: its last frame was early, or the one that waits is."""
        return self._last_early or (self._begins(now_ns, True) and not self._begins(now_ns, False))

    @property
    def has_frames(self) -> bool:
        """True if a frame waits, or has further passes."""
        return self._waiting is not None or bool(self._flights)

    @property
    def rests(self) -> bool:
        """True if all of its frames in flight are early ones."""
        return all(flight.early for flight in self._flights)

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
        self._waiting, self._passed_over = frame, False
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

    def runnable_rows(self, now_ns: int, *, early: bool = True) -> int:
        """Rows of this session's next pass; 0 when it has nothing to run now. early: also what is not due."""
        in_flight = sum(map(self._next_rows, self._flights))
        if self._waiting is not None and self._begins(now_ns, early):
            return self._waiting.rows + self._drafts + in_flight
        if not early and self.rests:
            return 0
        return in_flight if in_flight and (self._rounds_left > 0 or self._may_drain(now_ns)) else 0

    def early_work(self, now_ns: int) -> EarlyWork:
        """The passes left of its frames, with the one that waits."""
        begins = self._begins(now_ns, True)
        decodes = sum(
            self._next_rows(flight) if flight.speculation else self._unrolled[flight.stage].decode_rows
            for flight in self._flights
        )
        passes = self.stages if begins else max(self.stages - flight.stage for flight in self._flights)
        return EarlyWork(int(begins), decodes + (self._drafts if begins else 0), passes)

    def pass_over(self, now_ns: int) -> None:
        """Record that others run, although it has early frames that could."""
        self._passed_over = self.rests and self.runnable_rows(now_ns) > 0

    def wake_at_ns(self, now_ns: int) -> int | None:
        """When a drain or a turn becomes due, or an early frame has waited too long, if nothing else happens before."""
        times = []
        if self._idle_since_ns is not None and self._flights and not self._begins(now_ns, False):
            drain_ns = self._idle_since_ns + self._drain_after_ns
            times += [drain_ns] if drain_ns > now_ns or not self.rests else []
        if self._begins(now_ns, True) or (self._flights and self.rests):
            turn_ns = self.turn_ns(now_ns)
            times += [turn_ns] if turn_ns > now_ns else []
        if self._passed_over:
            waits = [flight.waits_until_ns for flight in self._flights]
            waits += [] if self._waiting is None else [self._waiting.waits_until_ns]
            times += [until_ns for until_ns in waits if until_ns]
        return min(times, default=None)

    @property
    def may_be_whole(self) -> bool:
        """True where a frame shares passes with no other of this session, and its steps overwrite each other."""
        return self._pace == Pace(1) and self._program.step_rows > 0

    def take(
        self, now_ns: int, *, early: bool = True, whole: bool = False
    ) -> tuple[list[tuple[Segment[FrameRef], FrameInFlight]], tuple[Move, ...]]:
        """Advance by one pass; return its segments, each with what `commit` knows it by, and the slot copies after.

        early: as in `runnable_rows`. whole: the frame that waits takes all of its passes in this one.
        """
        self._passed_over = False
        if self._rounds_left > 0 and self._flights:
            self._rounds_left -= 1
        elif self._waiting is not None and self._begins(now_ns, early):
            self._admit(self._waiting, now_ns)
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
        """The drafted frames that are too old to be answered while a newer one is in flight, and early frames that
        were passed over for too long.
        """
        late = [flight for flight in (*self._finishing, *self._flights) if self._too_old(flight, now_ns)]
        left = [self._departure(flight, Leaving.EXPIRED) for flight in late]
        self._forget(left)
        return left + self._give_up(now_ns) if self._passed_over else left

    def _give_up(self, now_ns: int) -> list[Departure]:
        """Its early frames were passed over. Those that waited too long leave. Once it has a turn, the turn goes to
        those in flight, or to a newer one in their place.
        """
        left: list[Departure] = []
        if self.turn_ns(now_ns) > now_ns:
            if self._waiting is not None and 0 < self._waiting.waits_until_ns <= now_ns:
                left.append(Departure(self._waiting.ref, Leaving.EARLY))
                self._waiting = None
            late = [flight for flight in self._flights if 0 < flight.waits_until_ns <= now_ns]
            left += [self._departure(flight, Leaving.EARLY) for flight in late]
        elif self._flights and self._waiting is None:
            if self._turns is not None:
                self._turns.take(now_ns)
            for flight in self._flights:
                flight.early = False
        elif self._rounds_left > 0:
            left += [self._departure(flight, Leaving.SUPERSEDED) for flight in self._flights]
        self._forget(left)
        if not self._flights:
            self._rounds_left = 0
        return left

    def _begins(self, now_ns: int, early: bool) -> bool:
        """True if the next pass begins with the frame that waits."""
        if self._waiting is None or (self._rounds_left > 0 and self._flights):
            return False
        return early or self.turn_ns(now_ns) <= now_ns

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

    def _admit(self, frame: Frame, now_ns: int) -> None:
        slot, generation = self.ring.claim()
        self._last_early = early = self._turns is not None and not self._turns.take(now_ns)
        if early and self._turns is not None:
            self._turns.empty(now_ns)
        before = self._newest
        self._newest = FrameInFlight(
            frame=frame.ref,
            rows=frame.rows,
            slot=slot,
            generation=generation,
            deadline_ns=frame.deadline_ns,
            expires_ns=frame.expires_ns,
            waits_until_ns=frame.waits_until_ns,
            early=early,
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
