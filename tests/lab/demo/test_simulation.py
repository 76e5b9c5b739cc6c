import numpy as np
import pytest

from edgeflow.lab.demo.lockstep import run_episode
from edgeflow.lab.demo.world.expert import Expert, action_goal, expert_action
from edgeflow.lab.demo.world.layout import HANDLES, sample_layout
from edgeflow.lab.demo.world.robot import MAX_SPEED
from edgeflow.lab.demo.world.sim import JUMP_S, RobotSim
from edgeflow.lab.demo.world.task import REACH, TIME_LIMIT, EpisodeOutcome, Task, judge_closing, names_of
from edgeflow_client.pose import Pose, relative


@pytest.fixture
def sim():
    simulation = RobotSim(0)
    yield simulation
    simulation.close()


@pytest.fixture
def blind(monkeypatch):
    """Frames are not drawn: for policies that do not look at them."""
    monkeypatch.setattr(RobotSim, "capture", lambda sim: None)


def trace(sim: RobotSim, seed: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    sim.reset(seed)
    expert, frames, poses = Expert(sim), [], []
    for _ in range(8):
        frames.append(sim.capture())
        poses.append(sim.pose().position)
        action = expert(None, sim.instruction)
        sim.command(action_goal(sim.pose(), action), action[6])
        sim.step(0.05)
    return frames, poses


def test_equal_seeds_give_bit_equal_frames_and_poses(sim):
    first = trace(sim, 7)
    other = RobotSim(3)
    second = trace(other, 7)
    other.close()
    assert np.array_equal(first[0], second[0])
    assert np.array_equal(first[1], second[1])


def test_other_seeds_give_other_frames(sim):
    sim.reset(1)
    first = sim.capture()
    sim.reset(2)
    assert not np.array_equal(first, sim.capture())


def test_a_frame_is_96_by_96_rgb(sim):
    assert sim.capture().shape == (96, 96, 3)


@pytest.mark.usefixtures("blind")
@pytest.mark.parametrize("speed", [0.0, 0.05])
def test_the_expert_solves_at_least_19_of_20_episodes(speed):
    sim = RobotSim(0, object_speed=speed)
    outcomes = []
    for seed in range(20):
        sim.reset(seed)
        outcomes.append(run_episode(sim, Expert(sim)))
    sim.close()
    assert outcomes.count(EpisodeOutcome.SUCCESS) >= 19


@pytest.mark.usefixtures("blind")
def test_the_named_handle_decides_where_the_expert_goes(sim):
    ends = []
    for target in range(HANDLES):
        sim.reset(5)
        sim.task = Task(target, f"grasp the {sim.handles[target].colour} handle")
        assert run_episode(sim, Expert(sim)) is EpisodeOutcome.SUCCESS
        ends.append(sim.pose().position)
    assert min(np.linalg.norm(ends[0] - ends[1]), np.linalg.norm(ends[1] - ends[2])) > 2 * REACH


@pytest.mark.usefixtures("blind")
def test_grasping_another_handle_than_the_named_one_fails(sim):
    sim.reset(5)
    wrong = (sim.task.target + 1) % HANDLES
    outcome = run_episode(sim, lambda image, text: expert_action(sim.pose(), sim.grasps()[wrong]))
    assert outcome is EpisodeOutcome.WRONG_TARGET


def test_doing_nothing_times_out(sim):
    sim.reset(5)
    sim.step(TIME_LIMIT + 1.0)
    assert sim.outcome is EpisodeOutcome.TIMEOUT
    assert sim.time == pytest.approx(TIME_LIMIT)


def test_closing_on_nothing_leaves_the_episode_running():
    nowhere = Pose(np.array([0.0, 0.0, 1.0]), wxyz=np.array([1.0, 0.0, 0.0, 0.0]))
    grasps = [handle.grasp(0.0) for handle in sample_layout(np.random.default_rng(0), 0.0)]
    assert judge_closing(nowhere, grasps, 0) is EpisodeOutcome.RUNNING


def test_the_tool_never_moves_faster_than_its_limit(sim):
    sim.reset(5)
    sim.command(Pose(np.array([0.6, 0.2, 0.1]), wxyz=sim.pose().wxyz), 1.0)
    before = sim.pose().position
    for _ in range(10):
        sim.step(0.1)
        after = sim.pose().position
        assert np.linalg.norm(after - before) <= 1.1 * MAX_SPEED * 0.1
        before = after


def test_hold_stops_the_tool(sim):
    sim.reset(5)
    sim.command(Pose(np.array([0.6, 0.2, 0.1]), wxyz=sim.pose().wxyz), 1.0)
    sim.step(0.2)
    sim.hold()
    sim.step(0.3)
    before = sim.pose().position
    sim.step(0.3)
    np.testing.assert_allclose(sim.pose().position, before, atol=1e-4)


def test_handles_move_at_their_speed_and_stay_in_their_cells():
    for handle in sample_layout(np.random.default_rng(1), 0.05):
        steps = np.diff([handle.pose(0.01 * tick).position for tick in range(500)], axis=0)
        straight = np.abs(np.linalg.norm(steps, axis=1) - 0.0005) < 1e-9
        assert straight.mean() > 0.9
        assert np.all(handle.pose(3.3).position[:2] >= handle.low)
        assert np.all(handle.pose(3.3).position[:2] <= handle.high)


def test_every_handle_can_be_named_and_the_ends_by_their_place():
    handles = sample_layout(np.random.default_rng(2), 0.0)
    assert names_of(handles, 0)[1:] == ("leftmost",)
    assert names_of(handles, 1)[1:] == ()
    assert names_of(handles, 2)[1:] == ("rightmost",)
    assert handles[0].pose(0.0).position[1] > handles[2].pose(0.0).position[1]


def test_the_experts_action_composed_with_the_tool_is_the_grasp_pose(sim):
    sim.reset(9)
    for grasp in sim.grasps():
        goal = action_goal(sim.pose(), expert_action(sim.pose(), grasp))
        assert np.linalg.norm(relative(goal, grasp).position) < 1e-9
        assert expert_action(goal, grasp)[6] == 0.0


@pytest.mark.parametrize("speed", [0.0, 0.1])
def test_the_target_jumps_once_and_stays_in_its_cell(speed):
    sim = RobotSim(3, object_speed=speed, object_jump_m=0.05)
    target, before, far = sim.task.target, None, []
    while sim.time < JUMP_S[1] + 0.5:
        handle = sim.handles[target]
        place = handle.pose(sim.time).position[:2]
        assert (handle.low - 1e-9 <= place).all() and (place <= handle.high + 1e-9).all()
        far += [] if before is None else [float(np.linalg.norm(place - before))]
        before = place
        sim.step(0.01)
    sim.close()
    moved = [each for each in far if each > 2 * speed * 0.01 + 1e-9]
    assert len(moved) == 1 and moved[0] == pytest.approx(0.05, abs=speed * 0.01 + 1e-9)
    assert JUMP_S[0] <= sim.jump.at_s <= JUMP_S[1] + 0.01
