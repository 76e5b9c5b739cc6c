"""Targets that move on with the goal of a policy whose actions are the whole way to it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from edgeflow_client.aging import Aging
from edgeflow_client.clock import ManualClock
from edgeflow_client.connection.outgoing import OutgoingMessages
from edgeflow_client.errors import FailedPrecondition
from edgeflow_client.pose import Pose
from edgeflow_client.rpc import control_pb2 as pb
from edgeflow_client.session import ClientSession
from edgeflow_client.types import Command
from tests.client.scripted import opened, session_settings

MS = 1_000_000
AGE_MS = 300  # of an answer on arrival; the next frame is captured then
FOLLOW = Aging(follow_s=0.5, look_ahead_s=0.0)
TOOL_DOWN = [0.0, 1.0, 0.0, 0.0]  # so that displacements are not in the axes of the base
VELOCITY = np.array([0.03, -0.04, 0.0])


class Robot:
    """A tool beside a goal, whose answers are AGE_MS old."""

    def __init__(self, aging: Aging = FOLLOW, **schema) -> None:
        self.clock = ManualClock(1_000 * MS)
        self.session = ClientSession(session_settings(), "go", self.clock, 2_000 * MS, aging)
        self._stream = OutgoingMessages(self.session.opening())
        next(self._stream)
        self.session.stream_opened(opened(500, **{"whole_way": True, **schema}), self._stream)

    @property
    def seconds(self) -> float:
        return self.clock.now_ns() / 1e9 - 1.0

    def answer(self, goal: Callable[[float], np.ndarray], age_ms: int = AGE_MS) -> None:
        """Push a frame, and receive its answer: the way to the goal at the capture."""
        pose = Pose([0.4, 0.0, 0.02], wxyz=TOOL_DOWN)
        way = (goal(self.seconds) - pose.position) * [1, -1, -1]  # in the axes of the tool
        self.session.push([b""], (), pose, "", self.clock.now_ns())
        messages = iter(lambda: next(self._stream), None)
        frame = next(message.frame for message in messages if message.HasField("frame"))
        self.clock.advance_ns(age_ms * MS)
        answer = pb.Action(epoch=1, seq=frame.seq, stamp_ns=frame.stamp_ns, command=pb.COMMAND_ACT, valid_for_ms=500)
        answer.values.extend([*way, 0.0, 0.0, 0.0, 1.0])
        assert self.session.stream_message(pb.ServerMessage(action=answer))

    def target(self) -> np.ndarray:
        return self.session.directive().tool.pose.position


def moving(seconds: float) -> np.ndarray:
    return np.array([0.42, 0.01, 0.05]) + VELOCITY * seconds


def test_from_the_second_answer_on_a_target_is_where_the_goal_is_now():
    robot = Robot()
    robot.answer(moving)
    assert robot.target() == pytest.approx(moving(0.0)), "one goal shows no motion"
    for _ in range(3):
        robot.answer(moving)
        assert robot.target() == pytest.approx(moving(robot.seconds))
        robot.clock.advance_ns(60 * MS)
        assert robot.target() == pytest.approx(moving(robot.seconds)), "it moves on between two answers"


def test_it_moves_on_for_the_given_age_only():
    robot = Robot()
    for _ in range(2):
        robot.answer(moving)
    captured_s = robot.seconds - AGE_MS / 1e3
    robot.clock.advance_ns(400 * MS)
    assert robot.target() == pytest.approx(moving(captured_s + FOLLOW.follow_s))
    robot.answer(moving, age_ms=501)
    assert robot.target() == pytest.approx(moving(robot.seconds - 0.501)), "an older answer stays where it is"


def test_after_a_turn_the_motion_is_that_of_the_last_two_goals():
    robot = Robot()
    turned = 2 * AGE_MS / 1e3

    def bouncing(seconds: float) -> np.ndarray:
        return moving(min(seconds, 2 * turned - seconds))

    for _ in range(4):
        robot.answer(bouncing)
    assert robot.target() == pytest.approx(bouncing(robot.seconds))


@pytest.mark.parametrize("velocity, why", [(0.015, "no more than a policy errs"), (0.3, "it is another goal")])
def test_a_target_stays_where_goals_do_not_show_a_motion(velocity, why):
    robot = Robot()

    def goal(seconds: float) -> np.ndarray:
        return np.array([0.42 + velocity * seconds, 0.0, 0.05])

    for _ in range(2):
        robot.answer(goal)
    assert robot.target() == pytest.approx(goal(AGE_MS / 1e3)), why


@pytest.mark.parametrize("how", ["hold", "reset", "instruction"])
def test_goals_before_a_hold_or_a_new_task_are_forgotten(how):
    robot = Robot()
    for _ in range(2):
        robot.answer(moving)
    if how == "hold":
        robot.session.stream_message(pb.ServerMessage(action=pb.Action(command=pb.COMMAND_HOLD)))
    elif how == "reset":
        robot.session.reset("")
    else:
        robot.session.push([b""], (), None, "another", robot.clock.now_ns())
    captured_s = robot.seconds
    robot.answer(moving)
    assert robot.session.directive().command is Command.ACT
    assert robot.target() == pytest.approx(moving(captured_s))


def test_it_is_off_by_default():
    robot = Robot(Aging())
    for _ in range(3):
        captured_s = robot.seconds
        robot.answer(moving)
    assert robot.target() == pytest.approx(moving(captured_s))


@pytest.mark.parametrize("schema", [{"whole_way": False}, {"horizon": 4, "step_ms": 50.0}])
def test_a_policy_whose_actions_have_no_goal_is_rejected_at_open(schema):
    with pytest.raises(FailedPrecondition, match="whole way to their target") as raised:
        Robot(**schema)
    assert raised.value.field == "aging.follow_s"
