"""Anchoring: the target of an action against matrices."""

import numpy as np
import pytest

from edgeflow.client.actions import Action, Directive, resolve
from edgeflow.client.pose import Pose, angle, distance, from_euler_xyz, from_rotvec, identity, rotate
from edgeflow.errors import FailedPrecondition
from edgeflow.types import ActionSchema, Command, StageTimings

NAMES = ("x", "y", "z", "roll", "pitch", "yaw", "gripper")


def schema(frame: str, rotation: str, relative: tuple[bool, ...] = (True,) * 6 + (False,)) -> ActionSchema:
    return ActionSchema(
        names=NAMES,
        units=("1",) * 7,
        low=(-1.0,) * 7,
        high=(1.0,) * 7,
        relative=relative,
        frame=frame,
        rotation=rotation,
    )


def homogeneous(pose: Pose) -> np.ndarray:
    matrix = np.eye(4)
    matrix[:3, :3] = np.stack([rotate(pose.wxyz, axis) for axis in np.eye(3)], axis=1)
    matrix[:3, 3] = pose.position
    return matrix


@pytest.mark.parametrize("rotation", ["rotvec", "euler_xyz"])
@pytest.mark.parametrize("seed", range(5))
def test_a_tool_action_is_composed_on_the_right(seed, rotation):
    rng = np.random.default_rng(seed)
    anchor = Pose(rng.normal(size=3), wxyz=from_rotvec(rng.normal(size=3)))
    values = rng.uniform(-1, 1, 7)
    turn = {"rotvec": from_rotvec, "euler_xyz": from_euler_xyz}[rotation](values[3:6])
    target = resolve(schema("tool", rotation), values, anchor)
    expected = homogeneous(anchor) @ homogeneous(Pose(values[:3], wxyz=turn))
    assert target.pose is not None
    np.testing.assert_allclose(homogeneous(target.pose), expected, atol=1e-12)
    assert target.values == {"gripper": values[6]}


@pytest.mark.parametrize("seed", range(5))
def test_a_base_action_adds_the_position_and_turns_about_the_base(seed):
    rng = np.random.default_rng(seed)
    anchor = Pose(rng.normal(size=3), wxyz=from_rotvec(rng.normal(size=3)))
    values = rng.uniform(-1, 1, 7)
    target = resolve(schema("base", "rotvec"), values, anchor)
    assert target.pose is not None
    np.testing.assert_allclose(target.pose.position, anchor.position + values[:3], atol=1e-12)
    turned = homogeneous(Pose(np.zeros(3), wxyz=from_rotvec(values[3:6]))) @ homogeneous(anchor)
    np.testing.assert_allclose(homogeneous(target.pose)[:3, :3], turned[:3, :3], atol=1e-12)


def test_absolute_dimensions_pass_through_without_a_pose():
    target = resolve(schema("tool", "rotvec", (False,) * 7), np.arange(7.0), None)
    assert target.pose is None
    assert target.values == dict(zip(NAMES, map(float, range(7)), strict=True))


def test_a_relative_action_without_a_pose_is_a_typed_error():
    with pytest.raises(FailedPrecondition, match="pose"):
        resolve(schema("tool", "rotvec"), np.zeros(7), None)


def test_target_is_anchored_to_the_frame_unless_told_otherwise():
    frame = Pose(np.array([1.0, 0.0, 0.0]), wxyz=identity().wxyz)
    now = Pose(np.array([5.0, 0.0, 0.0]), wxyz=identity().wxyz)
    values = np.array([0.1, 0, 0, 0, 0, 0, 1.0])
    action = Action(
        seq=1,
        epoch=1,
        values=values,
        token_ids=(),
        schema=schema("tool", "rotvec"),
        stamp_ns=0,
        received_ns=5,
        valid_until_ns=9,
        frame_pose=frame,
        timings=StageTimings(),
        server_ns=0,
    )
    assert Directive(Command.ACT, action=action).tool.pose.position[0] == pytest.approx(1.1)
    assert action.target(now).pose.position[0] == pytest.approx(5.1)
    assert action.age_ns == 5
    assert Directive(Command.HOLD, "SILENCE").tool is None
    assert distance(frame, now) == pytest.approx(4.0)
    assert angle(frame, now) == 0.0
