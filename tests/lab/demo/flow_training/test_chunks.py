import numpy as np
import pytest

from edgeflow.lab.demo.flow_training.chunks import Spread, displaced, expert_chunks
from edgeflow.lab.demo.flow_training.pursuit import REOPEN_ROWS, STEP_S
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


def test_poses_are_displaced_in_their_own_frames(pairs):
    tools = np.array([flat(tool) for tool, _ in pairs])
    moved = displaced(tools, np.full((len(pairs), 3), 0.01), np.full((len(pairs), 3), 0.1))
    for before, after in zip(tools, moved, strict=True):
        apart = relative(Pose(before[:3], wxyz=before[3:]), Pose(after[:3], wxyz=after[3:]))
        np.testing.assert_allclose(apart.position, 0.01, rtol=0, atol=1e-9)
        np.testing.assert_allclose(to_rotvec(apart.wxyz), 0.1, rtol=0, atol=1e-9)


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
