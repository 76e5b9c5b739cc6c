"""How a pose is made: the order of its quaternion is named, and what is no pose is told."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from edgeflow_client.errors import InvalidArgument
from edgeflow_client.pose import Pose, angle, check_distance, check_pose, compose, distance, from_rotvec, rotate

POSITION = [0.1, -0.2, 0.3]
ONE = [1.0, 0.0, 0.0, 0.0]
ANGLES = arrays(np.float64, 3, elements=st.floats(-3.1, 3.1))


def matrix(pose: Pose) -> np.ndarray:
    found = np.eye(4)
    found[:3, :3] = np.stack([rotate(pose.wxyz, axis) for axis in np.eye(3)], axis=1)
    found[:3, 3] = pose.position
    return found


def same(a: Pose, b: Pose) -> bool:
    return distance(a, b) < 1e-9 and angle(a, b) < 1e-6


@given(ANGLES, ANGLES)
def test_both_orders_and_a_matrix_give_the_same_pose(position, turn):
    wxyz = from_rotvec(turn)
    pose = Pose(position, wxyz=wxyz)
    assert same(pose, Pose(list(position), xyzw=(*wxyz[1:], wxyz[0])))
    assert same(pose, Pose.from_matrix(matrix(pose)))
    assert np.array_equal(pose.xyzw, [*pose.wxyz[1:], pose.wxyz[0]])


@pytest.mark.parametrize("axis", range(3))
def test_half_turns_survive_a_matrix(axis):
    turn = Pose(POSITION, wxyz=from_rotvec(math.pi * np.eye(3)[axis]))
    assert same(turn, Pose.from_matrix(matrix(turn)))


@given(ANGLES)
def test_roll_pitch_and_yaw_turn_about_fixed_axes(rpy):
    turns = [from_rotvec(value * axis) for value, axis in zip(rpy, np.eye(3), strict=True)]
    pose = Pose.from_rpy(POSITION, rpy)
    for axis in np.eye(3):
        expected = axis
        for turn in turns:
            expected = rotate(turn, expected)
        np.testing.assert_allclose(rotate(pose.wxyz, axis), expected, atol=1e-9)


def test_a_quaternion_is_normalised_and_numbers_are_copied():
    position, near = np.array(POSITION), np.array([1.0009, 0.0, 0.0, 0.0])
    pose = Pose(position, wxyz=near)
    position[0] = near[0] = math.nan
    assert (pose.position.tolist(), pose.wxyz.tolist()) == (POSITION, ONE)
    with pytest.raises(ValueError, match="read-only"):
        pose.position[0] = math.nan


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (
            lambda: Pose(POSITION, [0, 0, 0, 1]),
            r"pose: name the order .* Pose\(position, xyzw=\.\.\.\) if w comes last",
        ),
        (lambda: Pose(POSITION), "pose: name the order"),
        (lambda: Pose(POSITION, wxyz=ONE, xyzw=ONE), "pose: name the order of one quaternion"),
        (lambda: Pose(POSITION, xyzw=[0, 0, 0, 0]), r"pose\.xyzw: is .* of length 0; a rotation has length 1"),
        (lambda: Pose(POSITION, wxyz=[1.002, 0, 0, 0]), r"pose\.wxyz: is .* of length 1\.002; .* to within 0\.001"),
        (lambda: Pose(POSITION, wxyz=[1e308] * 4), r"pose\.wxyz: .* of length inf"),
        (lambda: Pose(POSITION, wxyz=[math.nan, 0, 0, 0]), r"pose\.wxyz: is \[nan, .*; every number must be finite"),
        (lambda: Pose(POSITION, wxyz=[0.0, 0.0, 0.0]), r"pose\.wxyz: has shape \[3\]; it must be 4 numbers"),
        (lambda: Pose([0.0, math.nan, 0.0], wxyz=ONE), r"pose\.position: is .*; every number must be finite"),
        (lambda: Pose([0.0, 0.0, math.inf], wxyz=ONE), r"pose\.position: is .*; every number must be finite"),
        (lambda: Pose(np.eye(4), wxyz=ONE), r"pose\.position: has shape \[4, 4\]; .* Pose\.from_matrix"),
        (lambda: Pose("0 0 0", wxyz=ONE), r"pose\.position: must be 3 numbers .*, got str"),
        (lambda: Pose(["0", "0", "0"], wxyz=ONE), r"pose\.position: must be 3 numbers .*, got list"),
        (lambda: Pose([[0.0], [0.0, 0.0]], wxyz=ONE), r"pose\.position: must be 3 numbers"),
        (lambda: Pose(None, wxyz=ONE), r"pose\.position: must be 3 numbers .*, got NoneType"),
        (lambda: Pose([True, False, True], wxyz=ONE), r"pose\.position: must be 3 numbers"),
        (lambda: Pose.from_matrix(np.eye(3)), r"matrix: has shape \[3, 3\]; it must be 4 x 4 numbers"),
        (lambda: Pose.from_matrix(np.diag([1.0, 1.0, -1.0, 1.0])), "matrix: is not the matrix of a pose"),
        (lambda: Pose.from_matrix(np.diag([2.0, 2.0, 2.0, 1.0])), "matrix: is not the matrix of a pose"),
        (lambda: Pose.from_matrix(np.full((4, 4), 1e300)), "matrix: is not the matrix of a pose"),
        (lambda: Pose.from_matrix(np.eye(4) + np.eye(4, k=-3)), "its last row 0 0 0 1"),
        (lambda: Pose.from_rpy(POSITION, [180.0, 0.0, 90.0]), r"rpy: is .* Convert degrees by numpy\.radians"),
        (lambda: Pose.from_rpy(POSITION, ONE), r"rpy: has shape \[4\]; it must be 3 numbers \(roll, pitch and yaw"),
    ],
)
def test_an_invalid_pose_is_an_error(make, told):
    with pytest.raises(InvalidArgument, match=told):
        make()


@pytest.mark.parametrize("far_m", [99.9, -99.9])
def test_a_pose_within_the_limit_may_be_pushed(far_m):
    check_pose(Pose([0.0, far_m, 0.0], wxyz=ONE), 100.0)
    check_pose(None, 100.0)


def test_millimetres_taken_for_metres_are_noticed():
    with pytest.raises(InvalidArgument, match=r"pose\.position: is 500 m .* max_distance_m .* is 100\. .* millimetres"):
        check_pose(Pose([400.0, 0.0, 300.0], wxyz=ONE), 100.0)
    check_pose(Pose([400.0, 0.0, 300.0], wxyz=ONE), 500.0)


def test_a_composition_that_overflowed_is_not_pushed():
    far = Pose([1.7e308, 0.0, 0.0], wxyz=ONE)
    with np.errstate(over="ignore"):
        beyond = compose(far, far)
    with pytest.raises(InvalidArgument, match="pose: is not finite"):
        check_pose(beyond, 100.0)


@pytest.mark.parametrize("given", [np.eye(4), (POSITION, ONE), "pose"])
def test_anything_except_a_pose_is_rejected(given):
    with pytest.raises(InvalidArgument, match=r"pose: must be a Pose, got \w+; make one by .* Pose\.from_matrix"):
        check_pose(given, 100.0)


@pytest.mark.parametrize("distance_m", [0, -1.0, math.nan, math.inf, 1e7, "100", None])
def test_a_distance_that_limits_nothing_is_rejected(distance_m):
    with pytest.raises(InvalidArgument, match="max_distance_m: must be above 0 and at most 1e"):
        check_distance(distance_m)
