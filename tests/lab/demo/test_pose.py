import numpy as np
import pytest

from edgeflow_client.pose import Pose, compose, from_rotvec, relative, rotate, to_rotvec


def random_pose(rng: np.random.Generator) -> Pose:
    return Pose(rng.normal(size=3), wxyz=from_rotvec(rng.normal(size=3)))


@pytest.mark.parametrize("seed", range(20))
def test_relative_undoes_compose(seed):
    rng = np.random.default_rng(seed)
    frame, target = random_pose(rng), random_pose(rng)
    again = compose(frame, relative(frame, target))
    np.testing.assert_allclose(again.position, target.position, atol=1e-12)
    np.testing.assert_allclose(abs(again.wxyz @ target.wxyz), 1.0, atol=1e-12)


@pytest.mark.parametrize("seed", range(20))
def test_rotation_vectors_survive_a_round_trip_below_half_a_turn(seed):
    rotvec = np.random.default_rng(seed).uniform(-1.7, 1.7, size=3)
    np.testing.assert_allclose(to_rotvec(from_rotvec(rotvec)), rotvec, atol=1e-12)


def test_no_rotation_is_the_zero_vector():
    assert np.array_equal(to_rotvec(from_rotvec(np.zeros(3))), np.zeros(3))


def test_a_quarter_turn_about_z_takes_x_to_y():
    quarter = from_rotvec(np.array([0.0, 0.0, np.pi / 2]))
    np.testing.assert_allclose(rotate(quarter, np.array([1.0, 0.0, 0.0])), [0.0, 1.0, 0.0], atol=1e-12)


def test_compose_applies_the_child_in_the_parents_frame():
    quarter = from_rotvec(np.array([0.0, 0.0, np.pi / 2]))
    moved = compose(Pose(np.array([1.0, 0.0, 0.0]), wxyz=quarter), Pose(np.array([2.0, 0.0, 0.0]), wxyz=quarter))
    np.testing.assert_allclose(moved.position, [1.0, 2.0, 0.0], atol=1e-12)
    np.testing.assert_allclose(to_rotvec(moved.wxyz), [0.0, 0.0, np.pi], atol=1e-7)
