"""The chunk being played, cut at the row that is due at a capture."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from edgeflow.engine.control.continuity import KEPT_CHUNKS, Continuity
from edgeflow.ipc.messages import SubmitFrame
from edgeflow_client.trajectory import ChunkReport, Playing, Seam

MS, STEP_NS, HORIZON = 1_000_000, 20_000_000, 10
ACTIONS = np.arange(2.0 * HORIZON).reshape(HORIZON, 2)
VALUES = np.arange(4.0 * (HORIZON + 2)).reshape(HORIZON + 2, 4)  # two rows and two numbers of padding


def frame(seq: int, stamp_ms: float, playing: Playing | None = None, delay_ms: float = 30, epoch: int = 1):
    return SubmitFrame(
        session=1,
        epoch=epoch,
        seq=seq,
        sizes=[],
        instruction="go",
        payload=b"",
        stamp_ns=round(stamp_ms * MS),
        playing=playing,
        delay_ns=round(delay_ms * MS),
    )


@pytest.fixture
def chunks() -> Continuity:
    chunks = Continuity(STEP_NS)
    chunks.keep(frame(1, 100), ACTIONS, VALUES)
    return chunks


@pytest.mark.parametrize(
    ("stamp_ms", "step", "row"),
    [(100, 0, 0), (109, 0, 0), (110, 0, 1), (119, 0, 1), (161, 3, 3), (170, 3, 4), (180, 3, 4)],
)
def test_the_row_that_is_due_is_the_nearest_by_the_stamps(chunks: Continuity, stamp_ms: float, step: int, row: int):
    plan, seam = chunks.plan(frame(2, stamp_ms, Playing(1, step)))
    assert plan is not None and seam is Seam.CONTINUED
    assert (plan.seq, plan.delay) == (1, 2)
    np.testing.assert_array_equal(plan.actions, ACTIONS[row:])
    np.testing.assert_array_equal(plan.values, VALUES[row:HORIZON, :2])
    np.testing.assert_array_equal(plan.before, ACTIONS[max(row - 3, 0) : row])


@pytest.mark.parametrize(
    ("playing", "stamp_ms", "delay_ms", "seam"),
    [
        (None, 120, 30, Seam.NONE),
        (Playing(1, 1), 120, 0, Seam.NONE),  # no answer has arrived yet
        (Playing(7, 1), 120, 30, Seam.FORGOTTEN),
        (Playing(1, 3), 120, 30, Seam.APART),
        (Playing(1, 0), 150, 30, Seam.APART),
        (Playing(1, 0), 80, 30, Seam.APART),
        (Playing(1, 8), 260, 60, Seam.OVER),
        (Playing(1, 8), 260, 40, Seam.CONTINUED),
        (Playing(1, 9), 400, 20, Seam.OVER),
    ],
)
def test_an_answer_that_continues_nothing_has_a_reason(chunks: Continuity, playing, stamp_ms, delay_ms, seam):
    plan, found = chunks.plan(frame(2, stamp_ms, playing, delay_ms))
    assert found is seam and (plan is not None) == (seam is Seam.CONTINUED)


@pytest.mark.parametrize(
    ("stamp_ms", "delay_ms", "changes", "expected"),
    [
        (161, 60, [2], ([(1, 3), (2, 3), (2, 4)], 2)),  # captured before the answer to frame 2 arrived
        (161, 30, [2], ([(2, 2), (2, 3), (2, 4)], 2)),
        (161, 61, [2, 3], ([(1, 3), (2, 3), (3, 3), (3, 4)], 3)),  # two answers on their way
        (161, 61, [2, (3, 1)], ([(1, 3), (2, 3), (2, 4)], 2)),  # the third one does not fit the second
        (159, 60, [(2, 1), (3, 2)], ([(1, 3), (2, 3), (3, 3), (3, 4)], 3)),
        (180, 30, [2], ([(2, 3), (2, 4)], 2)),
        (181, 30, [2], ([(1, 4), (1, 5)], 1)),  # the second should have arrived: it never will
        (181, 30, [(2, 1)], ([(1, 4), (1, 5)], 1)),  # or it is too late to fit
    ],
)
def test_answers_in_flight_are_executed_from_their_arrival_on(chunks, stamp_ms, delay_ms, changes, expected):
    stamps = {2: 120.0, 3: 140.0}
    if stamp_ms >= 180:
        stamps[2] = 130.0
    for each in changes:
        seq, continues = each if isinstance(each, tuple) else (each, 0)
        report = ChunkReport(continues=continues, conditioned_steps=2 if continues else 0)
        chunks.keep(frame(seq, stamps[seq]), ACTIONS + 100 * seq, VALUES + 100 * seq, report)
    plan, seam = chunks.plan(frame(4, stamp_ms, Playing(1, (stamp_ms - 100) // 20), delay_ms))
    rows, seq = expected
    assert plan is not None and seam is Seam.CONTINUED and plan.seq == seq
    offset = {1: 0, 2: 200, 3: 300}
    np.testing.assert_array_equal(plan.actions[: len(rows)], [ACTIONS[row] + offset[each] for each, row in rows])
    np.testing.assert_array_equal(plan.values[: len(rows)], [VALUES[row, :2] + offset[each] for each, row in rows])
    assert len(plan.values) == len(plan.actions)


def test_an_answer_in_flight_continues_where_the_chunk_in_execution_ends(chunks: Continuity):
    chunks.keep(frame(2, 260), ACTIONS + 200)
    plan, _ = chunks.plan(frame(3, 280, Playing(1, 9), 90))
    np.testing.assert_array_equal(plan.actions, np.concatenate([ACTIONS[9:], ACTIONS[2:] + 200]))
    assert (plan.seq, plan.delay, plan.values) == (2, 5, None)


def test_the_answer_to_a_resting_robot_begins_when_the_robot_says(chunks: Continuity):
    chunks.keep(replace(frame(2, 120), start_delay_ns=30 * MS), ACTIONS + 200)
    unknown, seam = chunks.plan(frame(3, 200, Playing(2, 1)))
    assert (unknown, seam) == (None, Seam.FORGOTTEN)
    plan, _ = chunks.plan(frame(4, 200, Playing(2, 1, start_ns=180 * MS)))
    np.testing.assert_array_equal(plan.actions, ACTIONS[1:] + 200)


def test_rows_executed_more_slowly_take_longer_to_pass(chunks: Continuity):
    chunks.keep(replace(frame(2, 120), rate_percent=50), ACTIONS + 200)
    plan, _ = chunks.plan(replace(frame(3, 200, Playing(2, 2), 60), rate_percent=50))
    np.testing.assert_array_equal(plan.actions, ACTIONS[2:] + 200)
    assert plan.delay == 2


def test_chunks_are_kept_as_copies(chunks: Continuity):
    passes = np.zeros((3, 2, HORIZON, 2))  # of all frames of a pass
    chunks.keep(frame(2, 120), passes[1, 0], passes[1, 1])
    passes[:] = 7.0
    plan, _ = chunks.plan(frame(3, 140, Playing(2, 1)))
    assert plan is not None and not plan.actions.any() and not plan.values.any()


def test_a_delay_is_the_rows_that_will_have_passed(chunks: Continuity):
    delays = [chunks.plan(frame(2, 100, Playing(1, 0), delay_ms))[0].delay for delay_ms in (0.001, 20, 20.001, 40)]
    assert delays == [1, 1, 2, 2]


def test_chunks_of_another_epoch_are_forgotten(chunks: Continuity):
    assert chunks.plan(frame(2, 100, Playing(1, 0), epoch=2))[1] is Seam.FORGOTTEN
    assert chunks.plan(frame(3, 100, Playing(1, 0), epoch=1))[1] is Seam.FORGOTTEN


def test_only_the_last_chunks_are_kept(chunks: Continuity):
    for seq in range(2, KEPT_CHUNKS + 2):
        chunks.keep(frame(seq, 100), ACTIONS)
    seams = [chunks.plan(frame(99, 100, Playing(seq, 0)))[1] for seq in (1, 2, KEPT_CHUNKS + 1)]
    assert seams == [Seam.FORGOTTEN, Seam.CONTINUED, Seam.CONTINUED]
    chunks.forget()
    assert chunks.plan(frame(99, 100, Playing(2, 0)))[1] is Seam.FORGOTTEN


def answers_that_fit(depth: int, *, at_the_answer: bool) -> int:
    """Of 120 answers those that continue what is played when they arrive, `depth` periods after the capture.

    at_the_answer: what they continue is known only then, as with limits, and not from the launch on, as guidance is.
    """
    chunks, period_ms, playing = Continuity(STEP_NS), 50, None
    in_flight: list[tuple[SubmitFrame, ChunkReport]] = []
    fitting = 0
    for seq in range(1, 121 + depth):
        now_ms = 1000.0 + seq * period_ms
        if len(in_flight) == depth:
            message, report = in_flight.pop(0)
            report = continued(chunks, message) if at_the_answer else report
            chunks.keep(message, np.zeros((4 * HORIZON, 2)), None, report)
            if report.continues in (0, playing.seq if playing else 0):
                fitting, playing = fitting + 1, message
        row = 0 if playing is None else int((now_ms * MS - playing.stamp_ns) // STEP_NS)
        sent = frame(seq, now_ms, None if playing is None else Playing(playing.seq, row), depth * period_ms)
        in_flight.append((sent, continued(chunks, sent)))
    return fitting


def continued(chunks: Continuity, message: SubmitFrame) -> ChunkReport:
    plan, _ = chunks.plan(message)
    return ChunkReport() if plan is None else ChunkReport(continues=plan.seq, conditioned_steps=plan.delay)


@pytest.mark.parametrize(("depth", "fits"), [(1, 120), (2, 61), (3, 42)])
def test_in_a_pipeline_about_one_answer_in_depth_continues_what_is_executed(depth: int, fits: int):
    assert answers_that_fit(depth, at_the_answer=False) == fits
    assert answers_that_fit(depth, at_the_answer=True) == 120
