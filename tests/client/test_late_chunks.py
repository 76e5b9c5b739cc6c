"""Chunks that continue the one being played: those that come later than they were conditioned on are not played as if
they fitted.
"""

from __future__ import annotations

import numpy as np
import pytest

from edgeflow_client.connection.wire import EXECUTIONS, open_message
from edgeflow_client.errors import InvalidArgument
from edgeflow_client.rpc import control_pb2 as pb
from edgeflow_client.trajectory import Candidate, Limited, LimitKind
from edgeflow_client.types import Command, Execution
from tests.client.scripted import session_settings
from tests.client.test_chunks import DIMS, HORIZON, MS, ROWS, STEP_MS, ChunkSession

VALID_MS = 60_000


@pytest.fixture
def robot() -> ChunkSession:
    """It plays a chunk since one step, the answer to frame 1."""
    robot = ChunkSession(max_action_age_s=60.0)
    assert robot.act(robot.push())
    robot.wait(STEP_MS)
    return robot


def continued(
    robot: ChunkSession, frame: pb.Frame, steps: int, rows=0.5 + 0 * ROWS, continues: int = 1, **changed
) -> bool:
    return robot.act(frame, rows, continues=continues, conditioned_steps=steps, **changed)


def late(robot: ChunkSession) -> tuple[int, int]:
    counts = robot.session.statistics()
    return counts.late, counts.late_played


@pytest.mark.parametrize(("age_ms", "is_late"), [(2 * STEP_MS, False), (2 * STEP_MS + 0.001, True)])
def test_a_chunk_fits_until_the_rows_that_it_was_conditioned_on_have_passed(robot: ChunkSession, age_ms, is_late):
    frame = robot.push()
    robot.wait(age_ms)
    assert continued(robot, frame, 2)
    action = robot.session.directive().action
    assert action.seq == (1 if is_late else 2)
    assert late(robot) == (int(is_late), 0)
    if not is_late:
        assert (action.report.continues, action.report.conditioned_steps, action.late) == (1, 2, False)


@pytest.mark.parametrize(("continues", "played"), [(0, 3), (1, 2), (2, 3)])
def test_a_chunk_that_continues_another_than_the_one_in_execution_does_not_fit(
    robot: ChunkSession, continues: int, played: int
):
    second, third = robot.push(), robot.push()  # the third is captured before the second is answered
    robot.wait(STEP_MS)
    assert continued(robot, second, 2) and continued(robot, third, 2, continues=continues)
    assert robot.session.directive().action.seq == played
    assert late(robot) == (int(played == 2), 0)
    robot.wait(HORIZON * STEP_MS)
    action = robot.session.directive().action
    assert (action.seq, action.late, late(robot)) == (3, played == 2, (int(played == 2), int(played == 2)))


def test_a_late_chunk_is_executed_after_the_last_row_of_the_other(robot: ChunkSession):
    frame = robot.push()
    robot.wait(3 * STEP_MS)
    assert continued(robot, frame, 2)
    found = []
    while (action := robot.session.directive().action) is not None and len(found) < 2 * HORIZON:
        found.append((action.seq, action.step, action.late))
        robot.wait(STEP_MS)
    assert found[:4] == [(1, 4, False), (1, 5, False), (1, 6, False), (1, 7, False)]
    assert found[4:6] == [(2, 7, True), (2, 7, True)]
    assert late(robot) == (1, 1)
    assert robot.session.statistics().actions == 2


def test_a_late_chunk_whose_validity_ends_earlier_is_never_executed(robot: ChunkSession):
    frame = robot.push()
    robot.wait(3 * STEP_MS)
    assert continued(robot, frame, 2, valid_for_ms=50)
    robot.wait(4 * STEP_MS)
    assert robot.session.directive().action.seq == 1
    robot.wait(VALID_MS)
    assert robot.session.directive().reason == "SILENCE" and late(robot) == (1, 0)


@pytest.mark.parametrize("held", ["by the service", "at the end of validity"])
@pytest.mark.parametrize("steps", [2, 100])
def test_a_resting_robot_is_not_started_by_a_chunk_that_continues_what_a_hold_ended(held: str, steps: int):
    robot = ChunkSession(max_action_age_s=60.0)
    assert robot.act(robot.push(), valid_for_ms=3 * STEP_MS)
    robot.wait(2 * STEP_MS)
    first, second, fresh, third, another = (robot.push() for _ in range(5))
    if held == "by the service":
        robot.session.stream_message(
            pb.ServerMessage(action=pb.Action(epoch=1, command=pb.COMMAND_HOLD, reason="HELD"))
        )
    robot.wait(STEP_MS)
    assert robot.session.directive().command is Command.HOLD
    assert not continued(robot, first, steps) and not continued(robot, second, steps, continues=2)
    assert robot.session.directive().command is Command.HOLD
    assert robot.act(fresh)  # begins a new motion, which only its own chunks may continue
    assert not continued(robot, third, steps)
    assert continued(robot, another, steps, continues=4)
    action = robot.session.directive().action
    assert (action.seq, action.late) == (6, False)
    assert late(robot) == (0, 0) and robot.session.statistics().ignored == 3


def test_a_chunk_from_the_reserve_continues_the_motion(robot: ChunkSession):
    frame = robot.push()
    robot.wait(3 * STEP_MS)
    assert continued(robot, frame, 2)
    robot.wait(4 * STEP_MS)
    newer = robot.push()
    assert robot.session.directive().action.seq == 2
    assert continued(robot, newer, 2, continues=2)
    assert robot.session.directive().action.seq == 3


def test_a_chunk_from_the_reserve_is_in_execution_for_the_next_late_one(robot: ChunkSession):
    first, second = robot.push(), robot.push()
    robot.wait(3 * STEP_MS)
    assert continued(robot, first, 2)
    robot.wait(4 * STEP_MS)
    assert continued(robot, second, 2, continues=2)
    assert robot.session.directive().action.seq == 2
    assert late(robot) == (2, 1) and robot.session.statistics().actions == 2


@pytest.mark.parametrize("end", ["hold", "reset", "instruction", "stream"])
def test_the_reserve_ends_with_the_chunk_in_execution(robot: ChunkSession, end: str):
    frame = robot.push()
    robot.wait(3 * STEP_MS)
    assert continued(robot, frame, 2)
    match end:
        case "hold":
            robot.session.stream_message(pb.ServerMessage(action=pb.Action(epoch=1, command=pb.COMMAND_HOLD)))
        case "reset":
            robot.session.reset("")
        case "instruction":
            robot.push(instruction="another")
        case "stream":
            robot.open()
            robot.session.stream_message(pb.ServerMessage(action=pb.Action(epoch=1, command=pb.COMMAND_HOLD)))
    for _ in range(HORIZON):
        assert robot.session.directive().command is Command.HOLD
        robot.wait(STEP_MS)
    assert late(robot) == (1, 0)


def test_a_newer_chunk_that_fits_replaces_what_is_in_reserve(robot: ChunkSession):
    first, second = robot.push(), None
    robot.wait(STEP_MS)
    second = robot.push()
    robot.wait(2 * STEP_MS)
    assert continued(robot, first, 2) and continued(robot, second, 2)
    assert robot.session.directive().action.seq == 3
    robot.wait(HORIZON * STEP_MS)
    assert robot.session.directive().action.seq == 3 and late(robot) == (1, 0)


def test_frames_report_chunks_executed_from_the_reserve(robot: ChunkSession):
    frame = robot.push()
    robot.wait(3 * STEP_MS)
    continued(robot, frame, 2)
    robot.wait(5 * STEP_MS)
    assert robot.push().playing == pb.Playing(seq=2, step=7, start_ns=frame.stamp_ns)
    begun_ns = frame.stamp_ns - STEP_MS * MS  # the frame before was captured a step earlier
    assert robot.push(ago_ms=3 * STEP_MS).playing == pb.Playing(seq=1, step=6, start_ns=begun_ns)


def test_frames_report_the_newest_chunk_that_arrived():
    robot = ChunkSession(max_action_age_s=60.0)
    first = robot.push()
    assert not first.HasField("arrived")
    robot.wait(30)
    robot.act(first)
    second = robot.push()
    robot.wait(170)
    assert continued(robot, second, 1)
    assert second.arrived == pb.Arrived(seq=1, age_ns=30_000_000)
    assert robot.push().arrived == pb.Arrived(seq=2, age_ns=170_000_000)


def test_the_arrival_of_a_single_action_is_reported_and_it_is_in_no_row():
    robot = ChunkSession(horizon=1, step_ms=0)
    frame = robot.push()
    robot.wait(30)
    assert robot.act(frame, np.zeros(DIMS))
    newer = robot.push()
    assert newer.arrived == pb.Arrived(seq=1, age_ns=30 * MS) and not newer.HasField("playing")


def test_an_action_says_how_it_came_about(robot: ChunkSession):
    limited = [
        pb.Limited(dimension="x", limit="velocity", beyond=0.5, changed=0.25),
        pb.Limited(dimension="x", limit="of another version"),
    ]
    scores = [pb.Candidate(score=3.0, distance=1.0, roughness=2.0), pb.Candidate(score=1.0, beyond=1.0)]
    assert continued(robot, robot.push(), 2, np.zeros((HORIZON, DIMS)), limited=limited, candidates=scores, chosen=1)
    report = robot.session.directive().action.report
    assert report.limited == (Limited(dimension="x", limit=LimitKind.VELOCITY, beyond=0.5, changed=0.25),)
    assert report.candidates[1] == Candidate(score=1.0, distance=0.0, roughness=0.0, beyond=1.0)
    assert report.chosen == 1 and report.continues == 1


def test_the_service_chooses_the_execution_by_default_and_of_chunks_only():
    assert open_message(session_settings(), "grasp").execution == pb.EXECUTION_AUTO
    assert open_message(session_settings(chunks=False), "grasp").execution == pb.EXECUTION_UNSPECIFIED
    for asked in Execution:
        message = open_message(session_settings(execution=asked.value), "grasp")
        assert EXECUTIONS[message.execution] is asked
    with pytest.raises(InvalidArgument, match="execution: must be one of auto, continue, fresh, rest, slow, got 'rtc'"):
        open_message(session_settings(execution="rtc"), "grasp")
