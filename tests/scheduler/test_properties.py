"""Random arrivals, stalls, resets and closes: what must hold of every plan."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from edgeflow.scheduler.plan import Departure, Frame, FrameRef, Leaving, Outcome, Pass
from edgeflow.scheduler.ring import Shift
from edgeflow.scheduler.scheduler import Scheduler, SchedulerLimits

STAGES = 4
SESSIONS = 3
DRAIN_NS = 5


class SchedulerMachine(RuleBasedStateMachine):
    """Drives a scheduler as a worker would, with passes committed up to two launches late."""

    shift = Shift.ROTATE

    def __init__(self) -> None:
        super().__init__()
        limits = SchedulerLimits(STAGES, SESSIONS, row_budget=20, drain_after_ns=DRAIN_NS, shift=self.shift)
        self.scheduler = Scheduler(limits)
        self.now_ns = 0
        self.epochs: dict[int, int] = {}
        self.offered: list[FrameRef] = []
        self.left: Counter[FrameRef] = Counter()
        self.rows: dict[FrameRef, int] = {}
        self.written: dict[int, tuple[FrameRef, int]] = {}  # slot → whose KV, how many rows, as the device knows it
        self.settled: Counter[FrameRef] = Counter()  # tokens, as the device knows it
        self.uncommitted: list[tuple[Pass[FrameRef], list[Outcome[FrameRef]]]] = []
        self.known: Counter[FrameRef] = Counter()  # tokens that were committed
        self.seq = 0

    @rule(session=st.integers(0, 4), depth=st.integers(1, STAGES), decode_rows=st.integers(1, 3))
    def open(self, session: int, depth: int, decode_rows: int) -> None:
        if session in self.epochs or len(self.epochs) == SESSIONS:
            return
        self.scheduler.open(session, epoch=1, depth=depth, decode_rows=decode_rows)
        self.epochs[session] = 1

    @rule(session=st.integers(0, 4), depth=st.integers(1, STAGES))
    def change_depth(self, session: int, depth: int) -> None:
        self.scheduler.change_depth(session, depth)

    @precondition(lambda self: self.epochs)
    @rule(data=st.data(), rows=st.integers(1, 9), newer=st.integers(0, 1), patience_ns=st.integers(0, 20))
    def offer(self, data: st.DataObject, rows: int, newer: int, patience_ns: int) -> None:
        session = data.draw(st.sampled_from(sorted(self.epochs)))
        self.epochs[session] += newer
        self.seq += 1
        ref = FrameRef(session, self.epochs[session], self.seq)
        self.offered.append(ref)
        self.rows[ref] = rows
        self.collect(self.scheduler.offer(Frame(ref, rows, self.now_ns + patience_ns)))

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
        self.collect(self.scheduler.close(session))

    @rule(stall_ns=st.integers(0, 8))
    def stall(self, stall_ns: int) -> None:
        self.now_ns += stall_ns

    @rule(dice=st.randoms(use_true_random=False))
    def run_a_pass(self, dice: random.Random) -> None:
        planned = self.scheduler.plan(self.now_ns)
        if planned is None:
            return
        self.uncommitted.append((planned, self.check(planned, dice)))
        if len(self.uncommitted) > 2:
            self.commit()

    @precondition(lambda self: self.uncommitted)
    @rule()
    def commit(self) -> None:
        planned, outcomes = self.uncommitted.pop(0)
        done = self.scheduler.commit(planned.number, outcomes)
        assert all(departure.why is Leaving.DONE for departure in done)
        for outcome in outcomes:
            self.known[outcome.sequence] += len(outcome.tokens)
        assert {departure.frame for departure in done} <= {outcome.sequence for outcome in outcomes}
        for departure in done:
            assert self.known[departure.frame] >= STAGES, "a frame leaves when its tokens are settled"
            assert departure.frame.epoch == self.epochs[departure.frame.session], "a result of an old epoch"
        self.collect(done)

    def collect(self, departures: list[Departure]) -> None:
        self.left.update(departure.frame for departure in departures)

    def check(self, planned: Pass[FrameRef], dice: random.Random) -> list[Outcome[FrameRef]]:
        """Run a pass as the device does: each segment settles any number of its sampled rows."""
        exact = all(segment.samples == 1 for earlier, _ in self.uncommitted for segment in earlier.segments)
        outcomes = []
        slots = [segment.slot for segment in planned.segments]
        assert len(slots) == len(set(slots)), "two segments of a pass share a slot"
        for segment in planned.segments:
            ref = segment.sequence
            assert self.left[ref] == 0, "a frame that left is run again"
            assert 1 <= segment.samples <= max(1, STAGES - segment.stage)
            if segment.stage == 0:
                assert self.settled[ref] == 0, "a prompt is run once"
                assert (segment.start, segment.length, segment.samples) == (0, self.rows[ref], 1)
                start = 0
            else:
                whose, start = self.written[segment.slot]
                assert whose == ref, "the slot's KV is another's"
                assert segment.start == start if exact else segment.start >= start
                assert segment.stage == self.settled[ref] if exact else 1 <= segment.stage <= self.settled[ref]
                assert segment.length == segment.samples
            accepted = dice.randint(1, segment.samples)
            self.settled[ref] += accepted
            self.written[segment.slot] = (ref, start + segment.length - segment.samples + accepted)
            outcomes.append(Outcome(ref, (0,) * accepted))
        exact = exact and all(segment.samples == 1 for segment in planned.segments)
        for move in planned.moves:
            frame, rows = self.written[move.source]
            assert rows == move.length if exact else rows <= move.length
            self.written[move.target] = (frame, rows)
        in_order = sorted(planned.segments, key=lambda segment: (segment.stage > 0, segment.slot))
        assert list(planned.segments) == in_order
        return outcomes

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
        while self.uncommitted:
            self.commit()
        assert sorted(self.left) == sorted(self.offered), "a frame never left"
        assert self.scheduler.plan(self.now_ns + DRAIN_NS) is None
        for session in list(self.epochs):
            assert self.scheduler.close(session) == []
        for session in range(SESSIONS):
            self.scheduler.open(100 + session, 1, 1)


class CopyMachine(SchedulerMachine):
    shift = Shift.COPY


TestRotate = SchedulerMachine.TestCase
TestRotate.settings = settings(stateful_step_count=60)
TestCopy = CopyMachine.TestCase
TestCopy.settings = settings(stateful_step_count=60)
