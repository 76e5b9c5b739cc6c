"""Targets of chunks: the motion of all rows up to the one played, against matrices."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeflow_client.actions import Action, resolve, resolve_rows
from edgeflow_client.aging import OFF, Aging
from edgeflow_client.errors import FailedPrecondition
from edgeflow_client.pose import Pose, from_euler_xyz, from_rotvec, identity, rotate
from edgeflow_client.types import ActionSchema, StageTimings

MS = 1_000_000
NAMES = ("x", "y", "z", "roll", "pitch", "yaw", "gripper")
STEP_MS = 20
FRAMES, ROTATIONS = st.sampled_from(["tool", "base"]), st.sampled_from(["rotvec", "euler_xyz"])


def schema(frame: str = "tool", rotation: str = "rotvec", relative: bool = True, horizon: int = 8) -> ActionSchema:
    return ActionSchema(
        names=NAMES,
        units=("1",) * 7,
        low=(-1.0,) * 7,
        high=(1.0,) * 7,
        relative=(relative,) * 6 + (False,),
        frame=frame,
        rotation=rotation,
        horizon=horizon,
        step_ms=float(STEP_MS),
    )


def matrix(quaternion: np.ndarray) -> np.ndarray:
    return np.stack([rotate(quaternion, axis) for axis in np.eye(3)], axis=1)


def homogeneous(position: np.ndarray, turn: np.ndarray) -> np.ndarray:
    result = np.eye(4)
    result[:3, :3], result[:3, 3] = turn, position
    return result


def chunk_action(chunk: np.ndarray, step: int, agreed: ActionSchema, late_ms: float = 0, **changed) -> Action:
    fields = {
        "seq": 1,
        "epoch": 1,
        "values": chunk[step],
        "token_ids": (),
        "schema": agreed,
        "stamp_ns": 1000 * MS,
        "received_ns": 1000 * MS + round(late_ms * MS),
        "valid_until_ns": 2000 * MS,
        "frame_pose": identity(),
        "timings": StageTimings(),
        "server_ns": 0,
        "chunk": chunk,
        "step": step,
        "step_ns": STEP_MS * MS,
    }
    return Action(**(fields | changed))


@settings(deadline=None)
@given(st.integers(0, 1000), st.integers(1, 8), FRAMES, ROTATIONS)
def test_rows_are_composed_one_after_another(seed, count, frame, rotation):
    rng = np.random.default_rng(seed)
    rows, anchor = rng.uniform(-1, 1, (count, 7)), Pose(rng.normal(size=3), wxyz=from_rotvec(rng.normal(size=3)))
    target = resolve_rows(schema(frame, rotation), rows, anchor)
    turn_of = {"rotvec": from_rotvec, "euler_xyz": from_euler_xyz}[rotation]
    expected = homogeneous(anchor.position, matrix(anchor.wxyz))
    for row in rows:
        turn = matrix(turn_of(row[3:6]))
        if frame == "tool":
            expected = expected @ homogeneous(row[:3], turn)
        else:
            expected = homogeneous(expected[:3, 3] + row[:3], turn @ expected[:3, :3])
    np.testing.assert_allclose(target.pose.position, expected[:3, 3], atol=1e-12)
    np.testing.assert_allclose(matrix(target.pose.wxyz), expected[:3, :3], atol=1e-12)
    assert (target.values, target.factor) == ({"gripper": rows[-1, 6]}, count)


@given(st.integers(0, 1000), FRAMES, ROTATIONS)
def test_one_row_is_the_action_itself(seed, frame, rotation):
    rng = np.random.default_rng(seed)
    row, anchor = rng.uniform(-1, 1, 7), Pose(rng.normal(size=3), wxyz=from_rotvec(rng.normal(size=3)))
    one, plain = resolve_rows(schema(frame, rotation), row[None], anchor), resolve(schema(frame, rotation), row, anchor)
    assert one.pose.position.tobytes() == plain.pose.position.tobytes()
    assert one.pose.wxyz.tobytes() == plain.pose.wxyz.tobytes()


def test_the_sum_is_not_bounded_by_the_limits_of_one_row():
    chunk = np.full((8, 7), [0.9, 0, 0, 0, 0, 0.9, 0.5])
    target = chunk_action(chunk, 7, schema("base")).target()
    assert target.pose.position[0] == pytest.approx(7.2)
    np.testing.assert_allclose(matrix(target.pose.wxyz), matrix(from_rotvec(np.array([0, 0, 7.2]))), atol=1e-12)


@pytest.mark.parametrize("look", [OFF, Aging(look_ahead_s=0.05), Aging(look_ahead_s=0.05, control_rate_hz=20.0)])
def test_the_sum_is_the_look_ahead_and_replaces_the_other_one(look):
    chunk = np.full((8, 7), [0.01, 0, 0, 0, 0, 0, 0.5])
    target = chunk_action(chunk, 3, schema("base"), late_ms=300, aging=look).target()
    assert target.pose.position[0] == pytest.approx(0.04)
    assert (target.factor, target.look_ahead_s, target.step) == (4.0, 0.06, 3)


def test_from_a_present_pose_it_is_one_row():
    chunk = 0.01 * np.arange(8)[:, None] * np.ones(7)
    present = Pose(np.array([5.0, 0.0, 0.0]), wxyz=identity().wxyz)
    target = chunk_action(chunk, 3, schema("base")).target(present)
    assert target.pose.position[0] == pytest.approx(5.03)
    assert (target.factor, target.look_ahead_s, target.step) == (1.0, 0.0, 3)


def test_absolute_rows_are_executed_unchanged():
    chunk = np.arange(56.0).reshape(8, 7)
    target = chunk_action(chunk, 5, schema(relative=False), frame_pose=None).target()
    assert target.pose is None
    assert list(target.values.values()) == list(chunk[5])
    assert (target.factor, target.look_ahead_s) == (1.0, 0.0)


def test_a_relative_chunk_without_a_pose_is_a_typed_error():
    with pytest.raises(FailedPrecondition, match="pose"):
        chunk_action(np.zeros((8, 7)), 2, schema(), frame_pose=None).target()


@pytest.mark.parametrize(
    ("late_ms", "now_ms", "age_s", "step_age_s"),
    [(10, None, 0.06, 0.0), (75, None, 0.075, 0.015), (10, 70, 0.07, 0.01), (10, 20, 0.02, 0.0)],
)
def test_ages_are_those_of_the_frame_and_of_the_row(late_ms, now_ms, age_s, step_age_s):
    aging = Aging(command_lead_s=0.005, slow_from_s=0.01)
    now_ns = None if now_ms is None else (1000 + now_ms) * MS
    target = chunk_action(np.zeros((8, 7)), 3, schema(), late_ms, aging=aging).target(now_ns=now_ns)
    assert target.age_s == pytest.approx(age_s + 0.005)
    assert target.step_age_s == pytest.approx(step_age_s + 0.005)
    assert target.speed == pytest.approx(min(1.0, 0.01 / (step_age_s + 0.005)))


def test_chunks_need_no_control_rate_for_a_look_ahead():
    look = Aging(look_ahead_s=0.05)
    look.check(schema())
    with pytest.raises(FailedPrecondition, match="control_rate_hz"):
        look.check(schema(horizon=1))
