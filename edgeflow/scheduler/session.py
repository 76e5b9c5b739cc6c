"""The frames of one session: at most one waiting, at most K in flight, and those that land.

A frame lands once passes that settle all of its tokens are planned, and leaves when they are committed.

A tick is one packed pass and `rounds - 1` decode-only passes after it (scheduler/depth.py).
"""

from __future__ import annotations

from edgeflow.scheduler.plan import Departure, Frame, FrameRef, Leaving, Move, Outcome, Segment
from edgeflow.scheduler.ring import Flight, Ring


class SessionQueue:
    """Decides what the next pass of one session contains. Integers only; time is an argument.

    decode_rows: most rows of a frame behind its prompt: its newest token, and drafts of those that follow.
    """

    def __init__(
        self, session: int, epoch: int, ring: Ring, *, rounds: int, drain_after_ns: int, decode_rows: int = 1
    ) -> None:
        self.session = session
        self.epoch = epoch
        self.ring = ring
        self.last_pass = -1
        self._rounds = rounds
        self._rounds_left = 0
        self._drain_after_ns = drain_after_ns
        self._decode_rows = decode_rows
        self._waiting: Frame | None = None
        self._flights: list[Flight] = []
        self._landing: list[Flight] = []
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

    def change_rounds(self, rounds: int) -> None:
        """Change the passes per tick from the next prefill on; frames in flight keep their order."""
        self._rounds = rounds

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
        left = [Departure(flight.frame, why) for flight in (*self._flights, *self._landing)]
        if self._waiting is not None:
            left.append(Departure(self._waiting.ref, why))
        self._waiting = None
        self._flights.clear()
        self._landing.clear()
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
            return self._waiting.rows + in_flight
        return in_flight if in_flight and self._may_drain(now_ns) else 0

    def wake_at_ns(self) -> int | None:
        """When a drain becomes due, if nothing else happens before."""
        if self._idle_since_ns is None or not self._flights or self._waiting is not None:
            return None
        return self._idle_since_ns + self._drain_after_ns

    def take(self) -> tuple[list[tuple[Segment[FrameRef], Flight]], tuple[Move, ...]]:
        """Advance by one pass; return its segments, each with what `commit` knows it by, and the slot copies after."""
        if self._rounds_left > 0 and self._flights:
            self._rounds_left -= 1
        elif self._waiting is not None:
            self._admit(self._waiting)
        taken = [(self._advance(flight), flight) for flight in self._flights]
        self._land()
        return taken, self.ring.advance(self._flights)

    def commit(self, flight: Flight, segment: Segment[FrameRef], outcome: Outcome[FrameRef]) -> list[Departure]:
        """Record what a segment gave; its frame leaves when all of its tokens are settled, unless it has left."""
        beyond = len(outcome.tokens) - 1
        flight.settled += 1 + beyond
        flight.stage += beyond
        flight.length += beyond
        flight.slack -= segment.samples - 1
        self._land()
        if flight.settled < self._stages or not any(flight is each for each in self._landing):
            return []
        self._landing = [each for each in self._landing if each is not flight]
        return [Departure(flight.frame, Leaving.DONE)]

    def _land(self) -> None:
        self._landing += [flight for flight in self._flights if flight.stage >= self._stages]
        self._flights = [flight for flight in self._flights if flight.stage < self._stages]

    @property
    def _stages(self) -> int:
        return len(self.ring.slots)

    def _admit(self, frame: Frame) -> None:
        slot, generation = self.ring.claim()
        self._flights.append(
            Flight(frame=frame.ref, rows=frame.rows, slot=slot, generation=generation, deadline_ns=frame.deadline_ns)
        )
        self._waiting = None
        self._rounds_left = self._rounds - 1
        self._idle_since_ns = None

    def _next_rows(self, flight: Flight) -> int:
        return min(self._decode_rows, self._stages - flight.stage)

    def _advance(self, flight: Flight) -> Segment[FrameRef]:
        samples = 1 if flight.stage == 0 else self._next_rows(flight)
        segment = Segment(
            sequence=flight.frame,
            slot=flight.slot,
            generation=flight.generation,
            start=flight.length + flight.slack,
            length=flight.rows if flight.stage == 0 else samples,
            stage=flight.stage,
            samples=samples,
            certain=flight.slack == 0,
        )
        flight.length += segment.length - samples + 1
        flight.slack += samples - 1
        flight.stage += 1
        return segment

    def _may_drain(self, now_ns: int) -> bool:
        if self._idle_since_ns is None:
            self._idle_since_ns = now_ns
        return now_ns - self._idle_since_ns >= self._drain_after_ns
