"""Poses and motions beyond any arm's reach."""

import math

import pytest

from edgeflow_client.errors import InvalidArgument
from edgeflow_client.types import Command
from tests.client.scripted import opened
from tests.client.test_session import StreamSession, at


@pytest.fixture
def robot() -> StreamSession:
    made = StreamSession()
    made.open()
    return made


def test_a_pose_too_far_is_not_offered(robot: StreamSession):
    with pytest.raises(InvalidArgument, match=r"pose\.position: is 400 m .* max_distance_m of the client is 100"):
        robot.push(at(400.0))
    assert robot.session.statistics().offered == 0


@pytest.mark.parametrize(
    ("values", "held"),
    [
        ([99.0, 0, 0, 0, 0, 6.0, 1e9], False),
        ([101.0, 0, 0, 0, 0, 0, 0], True),
        ([0, 0, 0, 0, 0, 6.3, 0], True),
        ([0, 0, 0, 0, 0, 0, 1e301], True),
    ],
)
def test_a_motion_that_no_arm_makes_is_held_also_without_limits(robot: StreamSession, values, held):
    answer = opened()
    for dimension in answer.schema.dimensions:
        dimension.low, dimension.high = -math.inf, math.inf
    robot.session.stream_opened(answer, robot.stream)
    robot.push(at(99.0))
    assert robot.act(robot.write(), values=values) is not held
    directive = robot.session.directive()
    assert (directive.command, directive.reason) == (
        (Command.HOLD, "ACTION_OUT_OF_LIMITS") if held else (Command.ACT, "")
    )
