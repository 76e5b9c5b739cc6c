import numpy as np
import pytest

from edgeflow.lab.demo.flow_training.pursuit import STEP_S, Tracks, pursue
from edgeflow.lab.demo.training.states import sample_state
from edgeflow.lab.demo.world.expert import CLOSE_WITHIN
from edgeflow.lab.demo.world.layout import HANDLES, sample_layout
from edgeflow.lab.demo.world.robot import MAX_SPEED
from tests.lab.demo.flow_training.reference import flat

ROWS = 48


@pytest.fixture(scope="module")
def tools():
    rng = np.random.default_rng(0)
    return np.array([flat(sample_state(rng).tool) for _ in range(10 * HANDLES)])


def layouts(speed):
    rng = np.random.default_rng(1)
    return [sample_layout(rng, speed) for _ in range(10)]


def tracks_of(scenes):
    handles, cells = [each for scene in scenes for each in scene], np.tile(np.arange(HANDLES), len(scenes))
    grasps, origins = np.array([flat(each.grasp(0.0)) for each in handles]), np.array([each.origin for each in handles])
    return Tracks.of(grasps, origins[:, :2], np.array([each.velocity for each in handles]), cells)


def times_of(count):
    return np.tile(STEP_S * np.arange(ROWS + 1), (count, 1))


def test_tracks_bounce_as_handles_do():
    scenes, times = layouts(0.13), np.linspace(0.0, 3.0, 7)
    tracks, handles = tracks_of(scenes), [each for scene in scenes for each in scene]
    expected = np.array([[each.grasp(time).position for time in times] for each in handles])
    np.testing.assert_allclose(tracks.grasps(np.tile(times, (len(handles), 1))), expected, rtol=0, atol=1e-9)
    later = tracks.from_time(np.full(len(handles), 1.0))
    np.testing.assert_allclose(
        later.grasps(np.full((len(handles), 1), 1.5)),
        np.array([[each.grasp(2.5).position] for each in handles]),
        rtol=0,
        atol=1e-9,
    )


def test_a_moving_handle_is_followed_within_the_limits_until_and_after_the_gripper_closes(tools):
    tracks = tracks_of(layouts(0.1))
    goals = tracks.grasps(times_of(len(tools)))
    plan = pursue(tools, np.ones(len(tools)), goals, tracks.grasp[:, 3:], np.zeros(len(tools), int))
    assert np.linalg.norm(np.diff(plan.positions, axis=1), axis=2).max() <= MAX_SPEED * STEP_S + 1e-9
    np.testing.assert_allclose(plan.positions[:, -1], goals[:, -1], rtol=0, atol=1e-9)
    closed = plan.gripper == 0.0
    assert closed[:, -1].all()
    first = closed.argmax(axis=1)
    off = np.linalg.norm(plan.positions - goals, axis=2)[np.arange(len(tools)), first]
    assert off.max() <= CLOSE_WITHIN


def test_the_rows_after_kept_ones_make_up_for_their_error(tools):
    tracks, count = tracks_of(layouts(0.05)), np.arange(len(tools)) % 25
    goals, at = tracks.grasps(times_of(len(tools))), (np.arange(len(tools)), count)
    before = pursue(tools, np.ones(len(tools)), goals + 0.02, tracks.grasp[:, 3:], np.zeros(len(tools), int))
    there = np.concatenate([before.positions[at], before.turns[at]], axis=1)
    later = pursue(there, before.apertures[at], goals, tracks.grasp[:, 3:], count)
    joined = before.then(later, count)
    for row, kept in enumerate(count):
        assert np.array_equal(joined.chunks()[row, :kept], before.chunks()[row, :kept])
    np.testing.assert_allclose(joined.positions[:, -1], goals[:, -1], rtol=0, atol=1e-9)
