"""Anchoring: the target of an action against matrices."""

from dataclasses import replace

import numpy as np
import pytest

from edgeflow_client.actions import PATIENCE, Action, Advice, Directive, resolve
from edgeflow_client.errors import FailedPrecondition
from edgeflow_client.pose import Pose, angle, distance, from_euler_xyz, from_rotvec, identity, rotate
from edgeflow_client.types import ActionSchema, Command, StageTimings

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


def test_target_is_anchored_to_the_frame_by_default():
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


def directive_of(relative: tuple[bool, ...], frame_pose: Pose | None = None, advice: Advice | None = None) -> Directive:
    action = Action(
        seq=1,
        epoch=1,
        values=np.arange(7) / 10,
        token_ids=(),
        schema=schema("tool", "rotvec", relative),
        stamp_ns=0,
        received_ns=5,
        valid_until_ns=9,
        frame_pose=frame_pose,
        timings=StageTimings(),
        server_ns=0,
        advice=advice or Advice(),
    )
    return Directive(Command.ACT, action=action)


MOVES_TOOL, ABSOLUTE = (True,) * 6 + (False,), (False,) * 7
OTHER = (False,) * 6 + (True,)  # a displacement, though not of the tool


@pytest.mark.parametrize(
    ("relative", "joints", "tool"), [(ABSOLUTE, True, False), (MOVES_TOOL, False, True), (OTHER, False, False)]
)
def test_each_kind_of_action_has_one_accessor(relative, joints, tool):
    directive = directive_of(relative, identity())
    assert (directive.joints is not None, directive.tool is not None) == (joints, tool)
    if joints:
        assert np.array_equal(directive.joints, np.arange(7) / 10)
    if tool:
        np.testing.assert_allclose(directive.tool.pose.position, [0.0, 0.1, 0.2])
        assert directive.tool.values == {"gripper": pytest.approx(0.6)}


@pytest.mark.parametrize("command", [Command.HOLD, Command.STOP])
def test_nothing_is_to_be_done_at_hold_and_stop(command):
    directive = Directive(command, "SILENCE")
    assert directive.joints is None and directive.tool is None


@pytest.mark.parametrize(
    ("relative", "read", "told"),
    [
        (ABSOLUTE, "tool", "directive.tool is None for every action of this policy: read directive.joints"),
        (MOVES_TOOL, "joints", "directive.joints is None for every action of this policy: read directive.tool"),
        (OTHER, "joints", "directive.joints is None for every action of this policy: read directive.action.values"),
        (OTHER, "tool", "directive.tool is None for every action of this policy: read directive.action.values"),
    ],
)
def test_a_loop_that_keeps_reading_the_wrong_kind_is_warned_once(relative, read, told, caplog):
    advice = Advice()  # of the session; each directive is a new one
    for count in range(5 * PATIENCE):
        assert getattr(directive_of(relative, identity(), advice), read) is None
        assert len(caplog.records) == (count + 1 >= PATIENCE)
    assert told in caplog.text


def test_a_loop_that_reads_both_kinds_is_not_warned(caplog):
    advice = Advice()
    for _ in range(5 * PATIENCE):
        directive = directive_of(ABSOLUTE, advice=advice)
        assert directive.tool is None and directive.joints is not None
    assert not caplog.records


def test_a_frame_without_a_pose_gives_no_target_and_is_logged_once(caplog):
    advice = Advice()
    for _ in range(5 * PATIENCE):
        assert directive_of(MOVES_TOOL, None, advice).tool is None
    (told,) = caplog.messages
    assert "pushed without one; write client.push(images, pose=...)" in told


@pytest.mark.parametrize("value", [1e200, 1.7e308])
def test_a_target_that_is_not_finite_is_never_returned(value):
    far = Pose([value, 0.0, 0.0], wxyz=[1.0, 0.0, 0.0, 0.0])
    action = replace(directive_of(MOVES_TOOL).action, values=np.full(7, value), frame_pose=far)
    for anchor in ("frame", far):
        with pytest.raises(FailedPrecondition, match=r"action\.values: .* too large a motion") as told:
            action.target(anchor)
        assert told.value.reason == "ACTION_OUT_OF_LIMITS"
