"""Random programs, arrivals, stalls, resets and closes: what must hold of every plan."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from edgeflow.contract import PROMPT, Pace, Speculation, Stage, StageProgram
from edgeflow.scheduler.pace import served_pace
from edgeflow.scheduler.plan import Departure, Frame, FrameRef, Leaving, Outcome, Pass, Segment
from edgeflow.scheduler.scheduler import Scheduler, SchedulerLimits
from edgeflow.scheduler.session import Shift
from edgeflow.scheduler.turns import TokenBucket

STAGES = 4  # most passes of any program
SESSIONS = 3
DRAIN_NS = 5
PACES = st.one_of(
    st.builds(Pace, st.integers(1, STAGES)),
    st.builds(Pace, st.just(0), st.builds(Speculation, st.integers(0, 2), st.integers(0, STAGES))),
)
BEHIND = st.builds(
    Stage, rows=st.integers(1, 5), repeats=st.integers(1, 3), group=st.integers(0, 2), advances=st.booleans()
)
PROGRAMS = st.one_of(
    st.builds(StageProgram.tokens, st.integers(1, STAGES)),
    st.lists(BEHIND, max_size=3)
    .filter(lambda stages: sum(stage.repeats for stage in stages) < STAGES)
    .map(lambda stages: StageProgram((Stage(rows=PROMPT), *stages))),
)


def drafts_of(program: StageProgram, pace: Pace) -> int:
    """Rows that a frame drafts after its prompt: an answer in tokens can be drafted, and nothing else."""
    tokens = all((stage.rows, stage.group, stage.advances) == (1, 0, True) for stage in program.stages[1:])
    return program.passes - 1 if tokens and pace.speculation else 0


class SchedulerMachine(RuleBasedStateMachine):
    """Drives a scheduler as a worker would, with passes committed up to two launches late.

    whole: as in Scheduler.
    """

    shift = Shift.ROTATE
    whole = False
    row_budget = 20

    def __init__(self) -> None:
        super().__init__()
        limits = SchedulerLimits(
            STAGES, SESSIONS, row_budget=self.row_budget, drain_after_ns=DRAIN_NS, shift=self.shift
        )
        self.scheduler = Scheduler(limits, whole=self.whole)
        self.now_ns = 0
        self.epochs: dict[int, int] = {}
        self.paces: dict[int, Pace] = {}
        self.programs: dict[int, StageProgram] = {}
        self.rings: dict[int, range] = {}  # slots that a session has been seen to use, and those between
        self.begun: dict[FrameRef, tuple[StageProgram, Pace]] = {}  # what a frame began with
        self.spans: dict[FrameRef, list[tuple[int, int, bool]]] = {}  # start, length, advances of its passes
        self.newest: dict[int, FrameRef] = {}  # of a session, in flight or gone
        self.passes: Counter[FrameRef] = Counter()
        self.offered: list[FrameRef] = []
        self.left: Counter[FrameRef] = Counter()
        self.rows: dict[FrameRef, int] = {}
        self.written: dict[int, tuple[FrameRef, int]] = {}  # slot → whose KV, how many rows, as the device knows it
        self.verified: Counter[FrameRef] = Counter()  # tokens, as the device knows it
        self.uncommitted: list[tuple[Pass[FrameRef], list[Outcome[FrameRef]]]] = []
        self.known: Counter[FrameRef] = Counter()  # tokens that were committed
        self.seq = 0

    @rule(session=st.integers(0, 4), pace=PACES, program=PROGRAMS)
    def open(self, session: int, pace: Pace, program: StageProgram) -> None:
        if session in self.epochs or len(self.epochs) == SESSIONS:
            return
        pace, program = self.opened(pace, program)
        self.scheduler.open(session, epoch=1, pace=pace, program=program, turns=self.turns())
        self.epochs[session] = 1
        self.paces[session] = pace
        self.programs[session] = program

    def opened(self, pace: Pace, program: StageProgram) -> tuple[Pace, StageProgram]:
        """What a session is opened with, of what was drawn."""
        return pace, program

    def turns(self) -> TokenBucket | None:
        """The turns of a session; None = all of its frames are due."""
        return None

    @rule(session=st.integers(0, 4), pace=PACES)
    def change_pace(self, session: int, pace: Pace) -> None:
        self.scheduler.change_pace(session, pace)
        if session in self.epochs:
            self.paces[session] = pace

    @precondition(lambda self: self.epochs)
    @rule(
        data=st.data(),
        rows=st.integers(1, 9),
        newer=st.sampled_from([0, 0, 0, 1]),
        patience_ns=st.integers(0, 20),
        expires=st.booleans(),
    )
    def offer(self, data: st.DataObject, rows: int, newer: int, patience_ns: int, expires: bool) -> None:
        session = data.draw(st.sampled_from(sorted(self.epochs)))
        self.epochs[session] += newer
        self.seq += 1
        ref = FrameRef(session, self.epochs[session], self.seq)
        self.offered.append(ref)
        self.rows[ref] = rows
        due_ns = self.now_ns + patience_ns
        self.collect(self.scheduler.offer(Frame(ref, rows, due_ns, due_ns if expires else 0, due_ns + 1)))

    @precondition(lambda self: self.epochs)
    @rule(data=st.data())
    def offer_of_an_old_epoch(self, data: st.DataObject) -> None:
        session = data.draw(st.sampled_from(sorted(self.epochs)))
        self.seq += 1
        ref = FrameRef(session, self.epochs[session] - 1, self.seq)
        self.offered.append(ref)
        departures = self.scheduler.offer(Frame(ref, 1))
        assert departures == [Departure(ref, Leaving.EPOCH_CHANGED)]
        self.collect(departures)

    @precondition(lambda self: self.epochs)
    @rule(data=st.data())
    def reset(self, data: st.DataObject) -> None:
        session = data.draw(st.sampled_from(sorted(self.epochs)))
        self.epochs[session] += 1
        self.collect(self.scheduler.reset(session, self.epochs[session]))

    @precondition(lambda self: self.epochs)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        session = data.draw(st.sampled_from(sorted(self.epochs)))
        del self.epochs[session]
        self.newest.pop(session, None)
        self.rings.pop(session, None)
        self.collect(self.scheduler.close(session))

    @rule(stall_ns=st.integers(0, 8))
    def stall(self, stall_ns: int) -> None:
        self.now_ns += stall_ns

    @rule(dice=st.randoms(use_true_random=False))
    def run_a_pass(self, dice: random.Random) -> None:
        self.collect(self.scheduler.expire(self.now_ns))
        while (begins := self.scheduler.next_frames(self.now_ns)) and not dice.randrange(4):
            rejected = dice.choice(begins)
            departures = self.scheduler.reject(rejected)
            assert departures == [Departure(rejected, Leaving.REJECTED)] and self.scheduler.reject(rejected) == []
            self.collect(departures)
        alone = self.whole and self.may_be_whole(begins)
        planned = self.scheduler.plan(self.now_ns)
        assert planned is None or not any(before.whole for before, _ in self.uncommitted), "its frame would be old"
        assert planned is None or planned.whole == alone
        prefills = () if planned is None else planned.prefills
        assert sorted(begins) == sorted(segment.sequence for segment in prefills), "others begin than was foretold"
        if planned is None:
            return
        self.uncommitted.append((planned, self.check(planned, dice)))
        if len(self.uncommitted) > 2:
            self.commit()

    @precondition(lambda self: self.uncommitted)
    @rule()
    def commit(self) -> None:
        planned, outcomes = self.uncommitted.pop(0)
        left = self.scheduler.commit(planned.number, outcomes, self.now_ns)
        for outcome in outcomes:
            program, _ = self.begun[outcome.sequence]
            passes = program.passes if planned.whole else 1
            self.known[outcome.sequence] += len(outcome.tokens) if program.drafts else passes
            self.passes[outcome.sequence] += passes
        done = {departure.frame for departure in left if departure.reason is Leaving.DONE}
        assert done <= {outcome.sequence for outcome in outcomes}
        for departure in left:
            frame = departure.frame
            assert frame.epoch == self.epochs[frame.session], "a result of an old epoch"
            program, pace = self.begun[frame]
            speculation = pace.speculation if drafts_of(program, pace) else None
            if departure.reason is Leaving.DONE:
                most = speculation.max_passes if speculation else 0
                verified = self.known[frame] >= program.passes
                assert verified or self.passes[frame] == most, "a frame leaves when its tokens are verified"
                assert speculation or self.passes[frame] == program.passes, "without drafts each of its passes runs"
                assert departure.verified == min(self.known[frame], program.passes)
                assert departure.passes == (1 if planned.whole else self.passes[frame])
                self.check_spans(frame, whole=planned.whole)
            elif departure.reason is Leaving.OVERTAKEN:
                gone = [other.frame for other in left if other.frame.session == frame.session]
                assert any(other > frame for other in gone)
            else:
                assert departure.reason is Leaving.EXPIRED and speculation
                assert self.newest[frame.session] > frame
        self.collect(left)

    def collect(self, departures: list[Departure]) -> None:
        self.left.update(departure.frame for departure in departures)

    def check(self, planned: Pass[FrameRef], dice: random.Random) -> list[Outcome[FrameRef]]:
        """Run a pass as the device does: each segment verifies any number of its sampled rows."""
        exact = all(segment.drafts == 0 for earlier, _ in self.uncommitted for segment in earlier.segments)
        outcomes = []
        slots = [segment.slot for segment in planned.segments]
        assert len(slots) == len(set(slots)), "two segments of a pass share a slot"
        for segment in planned.segments:
            ref = segment.sequence
            assert self.left[ref] == 0, "a frame that left is run again"
            if segment.stage == 0:
                assert self.verified[ref] == 0, "a prompt is run once"
                self.begin(segment)
                start = 0
            else:
                whose, start = self.written[segment.slot]
                assert whose == ref, "the slot's KV is another's"
                assert segment.start == start if exact else segment.start >= start
                assert segment.stage == self.verified[ref] if exact else 1 <= segment.stage <= self.verified[ref]
                assert segment.length == segment.samples
            program, pace = self.begun[ref]
            stage = [stage for stage in program.stages for _ in range(stage.repeats)][segment.stage]
            drafts = drafts_of(program, pace)
            assert segment.drafts == max(drafts - segment.stage, 0)
            assert segment.samples == (stage.rows or 1) + segment.drafts
            assert (segment.group, segment.advances) == (stage.group, stage.advances)
            assert segment.passes == (program.passes if planned.whole else 1)
            self.check_ring(segment.slot, ref.session, program)
            self.spans.setdefault(ref, []).append((segment.start, segment.length, segment.advances))
            accepted = dice.randint(1, segment.drafts + 1)
            self.verified[ref] += accepted
            kept = segment.length - segment.drafts + accepted - 1 if segment.advances else 0
            self.written[segment.slot] = (ref, start + kept)
            outputs = (
                accepted if program.drafts else dice.randint(0, segment.samples)
            )  # what they are is not its matter
            outcomes.append(Outcome(ref, (0,) * outputs))
        exact = exact and all(segment.drafts == 0 for segment in planned.segments)
        for move in planned.moves:
            frame, rows = self.written[move.source]
            assert rows == move.length if exact else rows <= move.length
            self.written[move.target] = (frame, rows)
        in_order = sorted(planned.segments, key=lambda segment: (segment.stage > 0, segment.slot))
        assert list(planned.segments) == in_order
        return outcomes

    def begin(self, segment: Segment[FrameRef]) -> None:
        """A prompt and its drafts, which are those of the frame before it in its epoch."""
        ref = segment.sequence
        program, pace = self.begun[ref] = self.programs[ref.session], self.paces[ref.session]
        drafts = drafts_of(program, pace)
        assert (segment.start, segment.length, segment.drafts) == (0, self.rows[ref] + drafts, drafts)
        before = self.newest.get(ref.session)
        self.newest[ref.session] = ref
        if not drafts or before is None or before.epoch != ref.epoch:
            assert segment.guess is None
        else:
            assert segment.guess is not None and segment.guess.position == self.rows[before]
            assert self.written[segment.guess.slot][0] == before, "the guess is another frame's"

    def check_ring(self, slot: int, session: int, program: StageProgram) -> None:
        """The slots of a session lie together, are no more than its passes, and are nobody else's."""
        seen = self.rings.get(session, range(slot, slot + 1))
        self.rings[session] = ring = range(min(slot, seen[0]), max(slot, seen[-1]) + 1)
        assert len(ring) <= program.passes
        for other, slots in self.rings.items():
            assert other == session or slots[-1] < ring[0] or ring[-1] < slots[0], "two sessions share slots"

    def may_be_whole(self, begins: list[FrameRef]) -> bool:
        """One frame begins, none waits or has further passes, and all sessions are serial, in steps that overwrite."""
        for session, program in self.programs.items():
            served = served_pace(self.paces[session], program)
            if session in self.epochs and (served != Pace(1) or all(each.advances for each in program.stages)):
                return False
        present = [frame for frame in self.offered if not self.left[frame] and not self.is_finishing(frame)]
        return present == begins and len(begins) == 1

    def is_finishing(self, frame: FrameRef) -> bool:
        """Its last pass is launched."""
        run = [planned for planned, outcomes in self.uncommitted if frame in {each.sequence for each in outcomes}]
        passes = len(self.spans.get(frame, ()))
        return any(planned.whole for planned in run) or (passes and passes == self.begun[frame][0].passes)

    def check_spans(self, frame: FrameRef, *, whole: bool) -> None:
        """Rows that advance follow each other from the start; others enter where those before them end."""
        program, pace = self.begun[frame]
        spans = self.spans[frame]
        assert spans[0][0] == 0
        if drafts_of(program, pace):
            return  # they may be placed at the furthest; the device knows
        assert len(spans) == (1 if whole else program.passes)
        for (start, length, advances), (following, _, _) in pairwise(spans):
            assert following == (start + length if advances else start)

    @invariant()
    def no_frame_leaves_twice(self) -> None:
        assert all(count == 1 for count in self.left.values())

    @invariant()
    def a_frame_is_recent(self) -> None:
        assert len(self.offered) - sum(self.left.values()) <= SESSIONS * (STAGES + 1) + STAGES * SESSIONS

    def teardown(self) -> None:
        """When frames stop, everything under way comes out; when sessions close, nothing is left."""
        for _ in range(SESSIONS * STAGES * STAGES):
            self.now_ns += DRAIN_NS
            self.run_a_pass(dice=random.Random(0))
            if self.uncommitted and self.uncommitted[-1][0].whole:
                self.commit()
        while self.uncommitted:
            self.commit()
        assert sorted(self.left) == sorted(self.offered), "a frame never left"
        assert all(self.passes[ref] <= program.passes for ref, (program, _) in self.begun.items())
        assert self.scheduler.plan(self.now_ns + DRAIN_NS) is None
        for session in list(self.epochs):
            assert self.scheduler.close(session) == []
        for session in range(SESSIONS):
            self.scheduler.open(100 + session, 1, Pace(1))


class CopyMachine(SchedulerMachine):
    shift = Shift.COPY


class WholeMachine(SchedulerMachine):
    """Most robots are serial, and their steps overwrite each other."""

    whole = True
    row_budget = 10

    def opened(self, pace: Pace, program: StageProgram) -> tuple[Pace, StageProgram]:
        steps = StageProgram((Stage(rows=PROMPT), Stage(rows=5, repeats=STAGES - 1, advances=False)))
        return (pace, program) if pace.depth == STAGES else (Pace(1), steps)


class EarlyMachine(SchedulerMachine):
    """Frames have turns, and most come before theirs."""

    def turns(self) -> TokenBucket | None:
        return TokenBucket(7, 2, self.now_ns)


TestRotate = SchedulerMachine.TestCase
TestRotate.settings = settings(stateful_step_count=60)
TestCopy = CopyMachine.TestCase
TestCopy.settings = settings(stateful_step_count=60)
TestWhole = WholeMachine.TestCase
TestWhole.settings = settings(stateful_step_count=60)
TestEarly = EarlyMachine.TestCase
TestEarly.settings = settings(stateful_step_count=60)
