"""Inverse, Euler angles and distances; tests/lab/demo/test_pose.py has the rest."""

import numpy as np
import pytest

from edgeflow_client.pose import Pose, angle, compose, distance, from_euler_xyz, from_rotvec, identity, inverse


def random_pose(rng: np.random.Generator) -> Pose:
    return Pose(rng.normal(size=3), wxyz=from_rotvec(rng.normal(size=3)))


def matrix(axis: int, turn: float) -> np.ndarray:
    c, s = np.cos(turn), np.sin(turn)
    flat = [
        [[1, 0, 0], [0, c, -s], [0, s, c]],
        [[c, 0, s], [0, 1, 0], [-s, 0, c]],
        [[c, -s, 0], [s, c, 0], [0, 0, 1]],
    ]
    return np.array(flat[axis])


def rotation(quaternion: np.ndarray) -> np.ndarray:
    w, x, y, z = quaternion
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )


@pytest.mark.parametrize("seed", range(10))
def test_a_pose_and_its_inverse_cancel(seed):
    pose = random_pose(np.random.default_rng(seed))
    for there_and_back in (compose(pose, inverse(pose)), compose(inverse(pose), pose)):
        assert distance(there_and_back, identity()) < 1e-12
        assert angle(there_and_back, identity()) < 1e-7


@pytest.mark.parametrize("seed", range(10))
def test_euler_angles_turn_about_fixed_axes(seed):
    angles = np.random.default_rng(seed).uniform(-3, 3, 3)
    expected = matrix(2, angles[2]) @ matrix(1, angles[1]) @ matrix(0, angles[0])
    np.testing.assert_allclose(rotation(from_euler_xyz(angles)), expected, atol=1e-12)


def test_angle_is_that_of_the_smallest_turn():
    a = Pose(np.zeros(3), wxyz=from_rotvec(np.array([0.0, 0.0, 3.0])))
    b = Pose(np.array([3.0, 4.0, 0.0]), wxyz=from_rotvec(np.array([0.0, 0.0, -3.0])))
    assert angle(a, b) == pytest.approx(2 * np.pi - 6.0)
    assert distance(a, b) == pytest.approx(5.0)
