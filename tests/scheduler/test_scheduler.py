"""The pass patterns of the papers, written out."""

from __future__ import annotations

import pytest

from edgeflow.contract import Pace, Speculation
from edgeflow.scheduler.plan import Departure, Frame, FrameRef, Leaving, Move, Outcome, Pass, Segment, SlotPosition
from edgeflow.scheduler.scheduler import Scheduler, SchedulerLimits
from edgeflow.scheduler.session import Shift
from edgeflow_client.errors import AlreadyExists, ResourceExhausted

K = 3
ROWS = 10


def make(
    depth: int, *, sessions: int = 1, shift: Shift = Shift.ROTATE, drain_ns: int = 0, budget: int = 100
) -> Scheduler:
    scheduler = Scheduler(SchedulerLimits(K, max(sessions, 1), budget, drain_ns, shift))
    for session in range(sessions):
        scheduler.open(session, epoch=1, pace=Pace(depth))
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


def test_frames_in_flight_drain_after_the_grace_time():
    scheduler = make(K, drain_ns=5)
    offer(scheduler, 1)
    scheduler.plan(0)
    assert scheduler.plan(10) is None
    assert scheduler.wake_at_ns(10) == 15
    assert scheduler.plan(14) is None
    assert shape(scheduler.plan(15)) == [(1, 1)]
    assert shape(scheduler.plan(15)) == [(1, 2)], "a drain under way does not wait again"
    assert scheduler.wake_at_ns(15) is None


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


@pytest.mark.parametrize("epoch", [0, 1])
def test_a_reset_to_an_epoch_that_has_begun_recalls_nothing(epoch: int):
    scheduler = make(1)
    offer(scheduler, 1)
    assert scheduler.reset(0, epoch) == []
    assert shape(scheduler.plan(0)) == [(1, 0)]


def speculative(stages: int = 6, *, shift: Shift = Shift.ROTATE, bins: int = 0, passes: int = 0) -> Scheduler:
    scheduler = Scheduler(SchedulerLimits(stages, 1, 100, drain_after_ns=50, shift=shift))
    scheduler.open(0, 1, Pace(0, Speculation(bins, passes)))
    return scheduler


def segments(scheduler: Scheduler) -> list[Segment[FrameRef]]:
    planned = scheduler.plan(0)
    assert planned is not None
    return list(planned.segments)


def test_outcomes_drive_the_plan():
    """A pass verifies any number of its rows; until it is committed, the fewest are counted on."""
    scheduler = speculative()
    offer(scheduler, 1)
    ref = FrameRef(0, 1, 1)

    def rows() -> tuple[int, int, int, bool]:
        (segment,) = segments(scheduler)
        return segment.start, segment.length, segment.stage, segment.certain

    assert rows() == (0, ROWS + 5, 0, True), "its drafts follow the prompt"
    assert rows() == (ROWS + 5, 5, 1, False), "one token is certain, five may follow"
    assert scheduler.commit(0, [Outcome(ref, (1,))]) == []
    assert rows() == (ROWS + 5, 4, 2, False), "at the furthest"
    assert scheduler.commit(1, [Outcome(ref, (2, 3))]) == []
    assert rows() == (ROWS + 6, 2, 4, False), "two were verified, and one is certain of the pass under way"
    assert scheduler.commit(2, [Outcome(ref, (4, 5, 6))]) == [Departure(ref, Leaving.DONE)], "before its last pass"
    assert scheduler.commit(3, [Outcome(ref, (9,))]) == []
    assert scheduler.plan(0) is None


def test_a_guess_is_read_from_the_frame_before_in_its_epoch():
    for shift in Shift:
        scheduler = speculative(shift=shift)
        offer(scheduler, 1)
        (first,) = segments(scheduler)
        assert first.guess is None
        offer(scheduler, 2)
        newest = next(segment for segment in segments(scheduler) if segment.stage == 0)
        assert newest.guess == SlotPosition(1 if shift is Shift.COPY else 0, ROWS), "where it is before the slots move"
        assert [segment.guess for segment in segments(scheduler)] == [None, None], "a prompt's drafts alone are guessed"
        scheduler.reset(0, 2)
        offer(scheduler, 3, epoch=2)
        (after,) = segments(scheduler)
        assert after.guess is None


def test_a_verified_frame_overtakes_those_before_it():
    scheduler = speculative()
    for seq in (1, 2, 3):
        offer(scheduler, seq)
        planned = scheduler.plan(0)
        assert planned is not None
        if seq < 3:
            scheduler.commit(planned.number, [Outcome(segment.sequence, (1,)) for segment in planned.segments])
    offer(scheduler, 4)
    given = {1: (1,), 2: (1,) * 5, 3: (1,) * 6}
    left = scheduler.commit(2, [Outcome(each.sequence, given[each.sequence.seq]) for each in planned.segments])
    refs = [FrameRef(0, 1, seq) for seq in (1, 2, 3)]
    assert left == [
        Departure(refs[0], Leaving.OVERTAKEN),
        Departure(refs[1], Leaving.OVERTAKEN),
        Departure(refs[2], Leaving.DONE),
    ]
    assert [(each.passes, each.verified) for each in left] == [(3, 3), (2, 6), (1, 6)]
    assert [segment.sequence.seq for segment in segments(scheduler)] == [4]


def test_a_frame_leaves_after_its_most_passes():
    scheduler = speculative(passes=2)
    offer(scheduler, 1)
    ref = FrameRef(0, 1, 1)
    segments(scheduler)
    assert scheduler.commit(0, [Outcome(ref, (1, 2))]) == []
    segments(scheduler)
    assert scheduler.plan(0) is None, "no third pass is launched ahead"
    (left,) = scheduler.commit(1, [Outcome(ref, (3,))])
    assert (left, left.passes, left.verified) == (Departure(ref, Leaving.DONE), 2, 3)


def test_frames_that_draft_do_not_wait_for_the_next_frame():
    scheduler = speculative()
    offer(scheduler, 1)
    for number in range(3):
        (segment,) = segments(scheduler)
        scheduler.commit(number, [Outcome(segment.sequence, (1,))])
    assert scheduler.wake_at_ns(15) is None


def test_a_frame_too_old_to_be_answered_leaves_where_a_newer_one_is_in_flight():
    scheduler = speculative()
    first, second = FrameRef(0, 1, 1), FrameRef(0, 1, 2)
    for ref in (first, second):
        scheduler.offer(Frame(ref, ROWS, expires_ns=10 * ref.seq))
        segments(scheduler)
    assert scheduler.expire(9) == []
    assert scheduler.expire(10) == [Departure(first, Leaving.EXPIRED)]
    assert scheduler.expire(99) == [], "the newest goes on: it is told as HOLD for its age"
    assert scheduler.commit(0, [Outcome(first, (1,))], 99) == []
    assert scheduler.commit(1, [Outcome(second, (1,) * 6), Outcome(first, (1,))], 99) == [
        Departure(second, Leaving.DONE)
    ]


def test_the_pace_changes_with_the_next_frame():
    scheduler = speculative(stages=3)
    offer(scheduler, 1)
    segments(scheduler)
    scheduler.change_pace(0, Pace(3))
    offer(scheduler, 2)
    assert [(each.stage, each.samples) for each in segments(scheduler)] == [(0, 1), (1, 2)]


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
        scheduler.open(7, 1, Pace(1))
    with pytest.raises(AlreadyExists):
        scheduler.open(0, 1, Pace(1))
    scheduler.close(0)
    scheduler.open(7, 1, Pace(1))


def test_a_returned_ring_is_not_shared():
    scheduler = make(1, sessions=3)
    scheduler.close(1)
    scheduler.open(7, 1, Pace(1))
    for session in (0, 2, 7):
        offer(scheduler, 1, session)
    planned = scheduler.plan(0)
    assert planned is not None
    assert {segment.sequence.session: segment.slot for segment in planned.segments} == {0: 0, 2: 2 * K, 7: K}
