"""The pass patterns of the papers, written out."""

from __future__ import annotations

import pytest

from edgeflow.errors import AlreadyExists, ResourceExhausted
from edgeflow.scheduler.plan import Departure, Frame, FrameRef, Leaving, Move, Outcome, Pass
from edgeflow.scheduler.ring import Shift
from edgeflow.scheduler.scheduler import Scheduler, SchedulerLimits

K = 3
ROWS = 10


def make(
    depth: int, *, sessions: int = 1, shift: Shift = Shift.ROTATE, drain_ns: int = 0, budget: int = 100
) -> Scheduler:
    scheduler = Scheduler(SchedulerLimits(K, max(sessions, 1), budget, drain_ns, shift))
    for session in range(sessions):
        scheduler.open(session, epoch=1, depth=depth)
    return scheduler


def offer(scheduler: Scheduler, seq: int, session: int = 0, epoch: int = 1) -> list[Departure]:
    return scheduler.offer(Frame(FrameRef(session, epoch, seq), ROWS))


def shape(planned: Pass | None) -> list[tuple[int, int]]:
    """(seq, stage) of each segment."""
    assert planned is not None
    return sorted((segment.sequence.seq, segment.stage) for segment in planned.segments)


def test_serial_runs_one_frame_to_its_end_before_the_next():
    scheduler = make(1)
    offer(scheduler, 1)
    assert shape(scheduler.plan(0)) == [(1, 0)]
    offer(scheduler, 2)
    assert [shape(scheduler.plan(0)) for _ in range(4)] == [[(1, 1)], [(1, 2)], [(2, 0)], [(2, 1)]]


def test_pipelined_packs_the_newest_prefill_with_all_decodes():
    scheduler = make(K)
    shapes = []
    for seq in range(1, 5):
        offer(scheduler, seq)
        shapes.append(shape(scheduler.plan(0)))
    assert shapes == [[(1, 0)], [(1, 1), (2, 0)], [(1, 2), (2, 1), (3, 0)], [(2, 2), (3, 1), (4, 0)]]
    assert scheduler.counts.full_passes == 2


def test_what_is_under_way_drains_after_the_grace_time():
    scheduler = make(K, drain_ns=5)
    offer(scheduler, 1)
    scheduler.plan(0)
    assert scheduler.plan(10) is None
    assert scheduler.wake_at_ns() == 15
    assert scheduler.plan(14) is None
    assert shape(scheduler.plan(15)) == [(1, 1)]
    assert shape(scheduler.plan(15)) == [(1, 2)], "a drain under way does not wait again"
    assert scheduler.wake_at_ns() is None


def test_the_newest_frame_wins():
    scheduler = make(1)
    assert offer(scheduler, 1) == []
    assert offer(scheduler, 2) == [Departure(FrameRef(0, 1, 1), Leaving.SUPERSEDED)]
    assert shape(scheduler.plan(0)) == [(2, 0)]


def test_a_new_epoch_recalls_even_a_frame_whose_last_pass_was_launched():
    scheduler = make(1)
    offer(scheduler, 1)
    assert [shape(scheduler.plan(0)) for _ in range(K)][-1] == [(1, K - 1)]
    ref = FrameRef(0, 1, 1)
    assert scheduler.reset(0, 2) == [Departure(ref, Leaving.EPOCH_CHANGED)]
    assert [scheduler.commit(number, [Outcome(ref, (7,))]) for number in range(K)] == [[], [], []]


def test_outcomes_drive_the_plan():
    """A pass settles any number of its rows; until it is committed, the fewest are counted on."""
    scheduler = Scheduler(SchedulerLimits(6, 1, 100, 0))
    scheduler.open(0, 1, depth=1, decode_rows=3)
    offer(scheduler, 1)
    ref = FrameRef(0, 1, 1)

    def rows() -> tuple[int, int, int]:
        planned = scheduler.plan(0)
        assert planned is not None
        (segment,) = planned.segments
        return segment.start, segment.length, segment.stage

    assert rows() == (0, ROWS, 0)
    assert rows() == (ROWS, 3, 1), "one token is certain, two may follow"
    assert scheduler.commit(0, [Outcome(ref, (1,))]) == []
    assert rows() == (ROWS + 3, 3, 2), "at the furthest"
    assert scheduler.commit(1, [Outcome(ref, (2, 3, 4))]) == []
    assert rows() == (ROWS + 6, 1, 5), "three were settled, and one is certain of the pass under way"
    assert scheduler.commit(2, [Outcome(ref, (5, 6))]) == [Departure(ref, Leaving.DONE)], "before its last pass"
    assert scheduler.commit(3, [Outcome(ref, (9,))]) == []
    assert scheduler.plan(0) is None


def test_copy_shift_moves_the_last_stage_first():
    scheduler = make(K, shift=Shift.COPY)
    for seq in (1, 2):
        offer(scheduler, seq)
        planned = scheduler.plan(0)
    assert planned is not None
    assert planned.moves == (Move(1, 2, ROWS + 1), Move(0, 1, ROWS))


def test_sessions_take_turns_within_the_row_budget():
    scheduler = make(1, sessions=2, budget=ROWS)
    offer(scheduler, 1, session=0)
    offer(scheduler, 1, session=1)
    order = []
    for _ in range(2):
        planned = scheduler.plan(0)
        assert planned is not None
        order += [segment.sequence.session for segment in planned.segments]
    assert order == [0, 1]


def test_sessions_share_a_pass_when_it_fits():
    scheduler = make(1, sessions=2, budget=2 * ROWS)
    offer(scheduler, 1, session=0)
    offer(scheduler, 1, session=1)
    planned = scheduler.plan(0)
    assert planned is not None and len(planned.prefills) == 2


def test_rings_are_limited_and_come_back():
    scheduler = make(1, sessions=1)
    with pytest.raises(ResourceExhausted, match="all 1 sessions"):
        scheduler.open(7, 1, 1)
    with pytest.raises(AlreadyExists):
        scheduler.open(0, 1, 1)
    scheduler.close(0)
    scheduler.open(7, 1, 1)
