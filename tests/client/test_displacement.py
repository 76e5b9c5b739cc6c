"""Scaled displacements against their naive twin: rotation matrices and limits searched step by step."""

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from edgeflow_client.displacement import displacement, look_ahead_factor
from edgeflow_client.pose import from_euler_xyz, from_rotvec, rotate, to_euler_xyz, to_rotvec
from edgeflow_client.types import ActionSchema

POSITION = ("x", "y", "z")
ROTATION = ("roll", "pitch", "yaw")
NAMES = (*POSITION, *ROTATION)
MOST_ANGLE = 0.3  # of a limit, radians: a step of the trained policies turns less

shares = st.lists(st.floats(-1.0, 1.0), min_size=6, max_size=6)
limits = st.lists(st.floats(0.001, MOST_ANGLE), min_size=6, max_size=6)
steps = st.floats(0.0, 20.0)


def schema(low, high, rotation: str) -> ActionSchema:
    return ActionSchema(
        names=NAMES,
        units=("1",) * 6,
        low=tuple(map(float, low)),
        high=tuple(map(float, high)),
        relative=(True,) * 6,
        rotation=rotation,
        control_rate_hz=20.0,
    )


def named(values) -> dict[str, float]:
    return dict(zip(NAMES, map(float, values), strict=True))


def matrix(quaternion: np.ndarray) -> np.ndarray:
    return np.stack([rotate(quaternion, axis) for axis in np.eye(3)], axis=1)


def cross(vector: np.ndarray) -> np.ndarray:
    x, y, z = vector
    return np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])


def exponential(generator: np.ndarray) -> np.ndarray:
    """The rotation matrix of a generator by its power series."""
    term, total = np.eye(3), np.eye(3)
    for number in range(1, 60):
        term = term @ generator / number
        total = total + term
    return total


def angles_of(turn: np.ndarray, rotation: str) -> np.ndarray:
    return to_rotvec(turn) if rotation == "rotvec" else to_euler_xyz(turn)


@settings(deadline=None)
@given(shares, st.floats(1.0, 5.0), st.sampled_from(["rotvec", "euler_xyz"]))
def test_position_and_rotation_are_scaled(values, factor, rotation):
    values = 0.5 * np.array(values)
    angles = values[3:] if rotation == "rotvec" else to_rotvec(from_euler_xyz(values[3:]))
    agreed = schema([-1] * 6, [1] * 6, rotation)
    scaled = displacement(named(values), agreed, factor)
    np.testing.assert_allclose(scaled.position, factor * values[:3], atol=1e-12)
    np.testing.assert_allclose(matrix(scaled.wxyz), exponential(factor * cross(angles)), atol=1e-9)


@pytest.mark.parametrize("rotation", ["rotvec", "euler_xyz"])
@pytest.mark.parametrize("count", [2, 3])
def test_a_whole_factor_is_the_displacement_repeated(count, rotation):
    """The naive twin of scaling: the tool moved `count` times, turning about the same axis."""
    values = np.array([0.01, -0.02, 0.03, 0.1, -0.2, 0.15])
    moves = named(values)
    agreed = schema([-1] * 6, [1] * 6, rotation)
    once, often = displacement(moves, agreed), displacement(moves, agreed, float(count))
    np.testing.assert_allclose(often.position, count * once.position, atol=1e-12)
    repeated = np.linalg.matrix_power(matrix(once.wxyz), count)
    np.testing.assert_allclose(matrix(often.wxyz), repeated, atol=1e-12)


def test_euler_angles_are_not_multiplied_one_by_one():
    moves = {"roll": 0.4, "pitch": 0.5, "yaw": 0.6}
    agreed = schema([-3] * 6, [3] * 6, "euler_xyz")
    wrong = matrix(from_euler_xyz(np.array([0.8, 1.0, 1.2])))
    assert np.abs(matrix(displacement(moves, agreed, 2.0).wxyz) - wrong).max() > 0.05


@settings(deadline=None)
@given(shares, limits, limits, steps, st.sampled_from(["rotvec", "euler_xyz"]))
def test_the_scaled_displacement_keeps_every_limit_and_its_direction(values, low, high, age, rotation):
    low, high = -np.array(low), np.array(high)
    values = np.where(np.array(values) > 0, high, -low) * np.array(values)
    moves = named(values)
    agreed = schema(low, high, rotation)
    factor = look_ahead_factor(moves, agreed, age, 20.0)
    assert 1.0 <= factor <= 1.0 + age
    scaled = displacement(moves, agreed, factor)
    reached = np.concatenate([scaled.position, angles_of(scaled.wxyz, rotation)])
    slack = 1e-9 if rotation == "rotvec" else 2e-4  # between two of the factors that are tried
    assert (low - slack <= reached).all() and (reached <= high + slack).all()
    np.testing.assert_allclose(np.cross(scaled.position, values[:3]), 0.0, atol=1e-12)
    before = to_rotvec(displacement(moves, agreed).wxyz)
    after = to_rotvec(scaled.wxyz)
    np.testing.assert_allclose(np.cross(before, after), 0.0, atol=1e-9)
    assert np.dot(before, after) >= 0.0 and np.dot(scaled.position, values[:3]) >= 0.0


@settings(deadline=None)
@given(shares, limits, st.tuples(steps, steps), st.sampled_from(["rotvec", "euler_xyz"]))
def test_the_factor_never_falls_with_age(values, bounds, ages, rotation):
    moves = named(np.array(values) * bounds)
    agreed = schema(-np.array(bounds), bounds, rotation)
    younger, older = (look_ahead_factor(moves, agreed, age, 20.0) for age in sorted(ages))
    assert younger <= older


@settings(deadline=None)
@given(shares, limits, steps, st.sampled_from(["rotvec", "euler_xyz"]))
def test_no_much_larger_factor_would_do(values, bounds, age, rotation):
    """The twin: factors in small steps until a limit, half a turn or the age is reached."""
    values = np.array(values) * bounds
    angle = np.linalg.norm(values[3:] if rotation == "rotvec" else to_rotvec(from_euler_xyz(values[3:])))
    assume(angle > 1e-6)
    moves = named(values)
    agreed = schema(-np.array(bounds), bounds, rotation)
    factor, step = 1.0, 0.02
    while (following := factor + step) <= min(1.0 + age, math.pi / angle):
        scaled = displacement(moves, agreed, following)
        reached = np.concatenate([scaled.position, angles_of(scaled.wxyz, rotation)])
        if (np.abs(reached) > bounds).any():
            break
        factor = following
    assert look_ahead_factor(moves, agreed, age, 20.0) >= factor - 20.0 / 128 - 1e-9


def test_a_limit_stops_all_dimensions_alike():
    bounds = [0.05, 1, 1, 1, 1, 1]
    moves = {"x": 0.02, "y": 0.01, "yaw": 0.1}
    agreed = schema([-each for each in bounds], bounds, "rotvec")
    assert look_ahead_factor(moves, agreed, 4.0, 4.0) == pytest.approx(2.5)
    assert look_ahead_factor({"y": 0.01, "yaw": 0.1}, agreed, 4.0, 4.0) == 5.0


def test_an_action_at_its_limit_is_not_extended_nor_one_that_rounding_put_beyond():
    agreed = schema([-0.01] * 6, [0.01] * 6, "rotvec")
    assert look_ahead_factor({"x": 0.01}, agreed, 4.0, 4.0) == 1.0
    assert look_ahead_factor({"x": -0.0100000001}, agreed, 4.0, 4.0) == 1.0


@pytest.mark.parametrize("rotation", ["rotvec", "euler_xyz"])
def test_a_scaled_rotation_is_at_most_half_a_turn(rotation):
    agreed = schema([-math.inf] * 6, [math.inf] * 6, rotation)
    assert look_ahead_factor({"yaw": 1.0}, agreed, 9.0, 9.0) == pytest.approx(math.pi)
    assert look_ahead_factor({"x": 1.0}, agreed, 9.0, 9.0) == 10.0
    assert look_ahead_factor({"x": 0.0}, agreed, 9.0, 9.0) == 10.0


@settings(deadline=None)
@given(shares)
def test_euler_angles_are_found_again(values):
    angles = np.array(values) * [1, 1, 1, 3.1, 1.5, 3.1]
    np.testing.assert_allclose(to_euler_xyz(from_euler_xyz(angles[3:])), angles[3:], atol=1e-6)
    stacked = to_euler_xyz(np.stack([from_euler_xyz(angles[3:]), from_rotvec(np.zeros(3))]))
    np.testing.assert_allclose(stacked[1], 0.0, atol=1e-12)
