import numpy as np
import pytest

from edgeflow.lab.demo.flow_training.chunks import (
    MOST_DELAY,
    REOPEN_ROWS,
    STEP_S,
    Spread,
    continued_chunks,
    displaced,
    draw_continued,
    expert_chunks,
)
from edgeflow.lab.demo.training.actions import NAMES, UNITS
from edgeflow.lab.demo.training.states import sample_state
from edgeflow.lab.demo.world.expert import expert_action
from edgeflow.lab.demo.world.robot import approach, state_of
from edgeflow_client.actions import resolve_rows
from edgeflow_client.pose import Pose, angle, compose, distance, relative, to_rotvec
from edgeflow_client.types import ActionSchema
from tests.lab.demo.flow_training.reference import flat

ROWS = 16
SCHEMA = ActionSchema(
    names=NAMES,
    units=UNITS,
    low=(-1.0,) * 7,
    high=(1.0,) * 7,
    relative=(True,) * 6 + (False,),
    control_rate_hz=20.0,
    frame="tool",
    rotation="rotvec",
    horizon=ROWS,
    step_ms=50.0,
)


@pytest.fixture(scope="module")
def pairs():
    """Tool poses and the grasp poses that they head for."""
    rng = np.random.default_rng(0)
    states = [sample_state(rng) for _ in range(60)]
    return [(state.tool, handle.grasp(0.0)) for state in states for handle in state.handles]


def rolled_out(tool, grasp):
    """The expert, step by step at the arm's control period."""
    rows, closed = [], False
    for _ in range(ROWS):
        closed = closed or expert_action(tool, grasp)[6] == 0.0
        reached = tool
        for _ in range(5):
            reached = approach(reached, grasp, STEP_S / 5)
        move, tool = relative(tool, reached), reached
        rows.append([*move.position, *to_rotvec(move.wxyz), 0.0 if closed else 1.0])
    return np.array(rows)


def test_chunks_are_the_experts_motion_at_its_own_limits(pairs):
    tools, grasps = (np.array([flat(pair[each]) for pair in pairs]) for each in (0, 1))
    chunks = expert_chunks(tools, grasps, np.ones(len(pairs)), ROWS)
    for chunk, (tool, grasp) in zip(chunks, pairs, strict=True):
        np.testing.assert_allclose(chunk, rolled_out(tool, grasp), rtol=0, atol=1e-7)
    assert {0.0, 1.0} == set(chunks[:, 0, 6])


def test_a_chunk_that_is_long_enough_leads_to_the_grasp_as_a_client_composes_it(pairs):
    for tool, grasp in pairs[:20]:
        chunk = expert_chunks(flat(tool), flat(grasp), np.ones(()), 60)
        reached = resolve_rows(SCHEMA, chunk, tool).pose
        assert distance(reached, grasp) < 1e-6
        assert angle(reached, grasp) < 1e-6


def test_a_gripper_that_closed_on_nothing_opens_first(pairs):
    there = np.tile(flat(pairs[0][1]), (4, 1))
    at_it = expert_chunks(there, there, np.array([1.0, 0.6, 0.4, 0.0]), ROWS)[..., 6]
    assert (at_it[:2] == 0.0).all()
    assert (at_it[2:, :REOPEN_ROWS] == 1.0).all()
    assert (at_it[2:, REOPEN_ROWS:] == 0.0).all()


def test_given_rows_that_close_the_gripper_away_from_the_goal_are_followed_by_open_ones(pairs):
    tool, grasp = pairs[0]
    given = np.zeros((1, ROWS, 7))
    chunk = continued_chunks(flat(tool)[None], flat(grasp)[None], np.ones(1), given, np.array([3]))[0]
    assert chunk[:3, 6].tolist() == [0.0] * 3
    assert (chunk[3 : 3 + REOPEN_ROWS, 6] == 1.0).all()


def test_given_rows_are_kept_and_the_rest_makes_up_for_them(pairs):
    rng = np.random.default_rng(1)
    tools, grasps = (np.array([flat(pair[each]) for pair in pairs]) for each in (0, 1))
    away = displaced(grasps, 0.02 * rng.standard_normal((len(pairs), 3)), 0.1 * rng.standard_normal((len(pairs), 3)))
    given, count = expert_chunks(tools, away, np.ones(len(pairs)), 60), np.arange(len(pairs)) % 7
    chunks = continued_chunks(tools, grasps, np.ones(len(pairs)), given, count)
    for chunk, before, rows, (tool, grasp) in zip(chunks, given, count, pairs, strict=True):
        assert np.array_equal(chunk[:rows], before[:rows])
        reached = resolve_rows(SCHEMA, chunk, tool).pose
        assert distance(reached, grasp) < 1e-6
        assert angle(reached, grasp) < 1e-6


def test_most_sampled_chunks_keep_rows_to_a_nearby_goal(pairs):
    tools, grasps = (np.array([flat(pair[each]) for pair in pairs]) for each in (0, 1))
    chunks, kept = draw_continued(tools, grasps, np.ones(len(pairs)), ROWS, np.random.default_rng(2))
    plain = expert_chunks(tools, grasps, np.ones(len(pairs)), ROWS)
    assert set(kept.tolist()) == set(range(MOST_DELAY + 1))
    fresh = kept == 0
    np.testing.assert_allclose(chunks[fresh], plain[fresh], rtol=0, atol=1e-6)
    first = np.linalg.norm(chunks[~fresh, 0, :3] - plain[~fresh, 0, :3], axis=1)
    assert 1e-4 < np.median(first) < 0.01


def test_the_state_is_zero_turn_for_a_tool_that_points_down():
    down = Pose(np.array([0.4, 0.1, 0.3]), wxyz=np.array([0.0, np.sqrt(0.5), -np.sqrt(0.5), 0.0]))
    np.testing.assert_allclose(state_of(down, 0.25), [0.4, 0.1, 0.3, 0.0, 0.0, 0.0, 0.25], atol=1e-9)
    turned = compose(down, Pose(np.zeros(3), wxyz=np.array([np.cos(0.1), 0.0, 0.0, np.sin(0.1)])))
    np.testing.assert_allclose(state_of(turned, 1.0)[3:6], [0.0, 0.0, 0.2], atol=1e-9)


def test_the_spread_is_that_of_all_rows():
    rows = np.array([[[0.0, 1.0], [2.0, 1.0]], [[4.0, 1.0], [6.0, 5.0]]], np.float32)
    spread = Spread.of(rows)
    np.testing.assert_allclose(spread.mean, [3.0, 2.0])
    np.testing.assert_allclose(spread.std, [np.sqrt(5.0), np.sqrt(3.0)])
