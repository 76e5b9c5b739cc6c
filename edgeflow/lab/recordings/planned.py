"""Recorded decisions in place of a scheduler."""

from __future__ import annotations

from collections.abc import Sequence

from edgeflow.contract import Pace, StageProgram
from edgeflow.scheduler.plan import Departure, Frame, FrameRef, Leaving, Outcome, Pass
from edgeflow.scheduler.scheduler import SchedulerCounts
from edgeflow.scheduler.turns import TokenBucket


class PlannedScheduler:
    """Answers a control loop as the scheduler answered the one that was recorded (scheduler.scheduler.PassPlanner).

    `expect` takes the decisions of the next step. What this loop asks is noted until then.
    """

    def __init__(self) -> None:
        self.counts = SchedulerCounts()
        self.holds_frames = False
        self.waiting: dict[FrameRef, int] = {}
        """Frames that were offered and have not begun, with the rows of their prompts."""
        self.begun: set[FrameRef] = set()
        """Frames that have begun in this loop and have not left."""
        self._programs: dict[int, StageProgram] = {}
        self._tokens: dict[FrameRef, int] = {}
        self.expect()

    def expect(
        self,
        *,
        left: Sequence[Departure] = (),
        frames: Sequence[FrameRef] = (),
        planned: Pass[FrameRef] | None = None,
    ) -> None:
        """The decisions of the next step: frames that leave, frames to prepare, the pass to run."""
        self._left, self._frames, self._planned = left, frames, planned
        self.offered = False
        """This step has offered a frame."""
        self.rows = 0
        """Rows of its prompt."""
        self.rejected: list[FrameRef] = []
        """Frames that the policy has rejected in this step."""
        self.outcomes: Sequence[Outcome[FrameRef]] = ()
        """The outcomes of the pass of this step."""

    def open(
        self,
        session: int,
        epoch: int,  # noqa: ARG002 - as in PassPlanner
        pace: Pace,  # noqa: ARG002
        program: StageProgram | None,
        turns: TokenBucket | None,  # noqa: ARG002
    ) -> None:
        if program is not None:
            self._programs[session] = program

    def change_pace(self, session: int, pace: Pace) -> None: ...

    def close(self, session: int) -> list[Departure]:  # noqa: ARG002
        return self._depart()

    def reset(self, session: int, epoch: int) -> list[Departure]:  # noqa: ARG002
        return self._depart()

    def offer(self, frame: Frame) -> list[Departure]:
        self.offered, self.rows = True, frame.rows
        self.waiting[frame.ref] = frame.rows
        return self._depart()

    def next_frames(self, now_ns: int) -> list[FrameRef]:  # noqa: ARG002
        return [frame for frame in self._frames if frame not in self.rejected]

    def is_finishing(self, session: int) -> bool:  # noqa: ARG002 - the order of passes is the recorded one
        return False

    def reject(self, frame: FrameRef) -> list[Departure]:
        self.rejected.append(frame)
        self.waiting.pop(frame, None)
        return []

    def plan(self, now_ns: int) -> Pass[FrameRef] | None:
        if self._planned is not None:
            ready = self.next_frames(now_ns)
            missing = [each.sequence for each in self._planned.prefills if each.sequence not in ready]
            if missing:
                frame = missing[0]
                text = f"the policy rejects frame {frame.seq} of session {frame.session}, which was answered"
                raise ReplayStopped(text)
            for segment in self._planned.prefills:
                self.waiting.pop(segment.sequence, None)
                self.begun.add(segment.sequence)
        return self._planned

    def commit(self, number: int, outcomes: Sequence[Outcome[FrameRef]], now_ns: int) -> list[Departure]:  # noqa: ARG002
        self.outcomes = outcomes
        for outcome in outcomes:
            if outcome.sequence in self.begun:
                self._tokens[outcome.sequence] = self._tokens.get(outcome.sequence, 0) + len(outcome.tokens)
        guesses = {outcome.sequence: len(getattr(outcome, "guesses", ())) for outcome in outcomes}
        left = []
        for departure in self._left:
            frame = departure.frame
            if departure.reason is Leaving.DONE and frame not in self.begun:
                continue  # it began before records were lost
            program = self._programs.get(frame.session)
            found = self._tokens.get(frame, 0) + guesses.get(frame, 0)
            if departure.reason is Leaving.DONE and program and program.drafts and found < program.passes:
                departure = Departure(frame, Leaving.EXPIRED)  # its answer has fewer tokens here
            left.append(departure)
        self._left = left
        return self._depart()

    def expire(self, now_ns: int) -> list[Departure]:  # noqa: ARG002
        return self._depart()

    def wake_at_ns(self, now_ns: int) -> int | None:  # noqa: ARG002
        return None

    def _depart(self) -> list[Departure]:
        left = list(self._left)
        for departure in left:
            self.waiting.pop(departure.frame, None)
            self.begun.discard(departure.frame)
            self._tokens.pop(departure.frame, None)
        return left


class ReplayStopped(Exception):
    """The replay cannot go on."""
