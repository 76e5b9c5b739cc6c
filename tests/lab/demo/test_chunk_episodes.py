import numpy as np
import pytest

from edgeflow.lab.demo.flow_training.chunks import expert_chunks
from edgeflow.lab.demo.world.sim import RobotSim
from edgeflow.lab.demo.world.task import EpisodeOutcome
from tests.lab.demo.chunk_episodes import ChunkTiming, run_chunks
from tests.lab.demo.flow_training.reference import flat

ROWS = 16


@pytest.fixture(autouse=True)
def blind(monkeypatch):
    """Frames are not drawn: the policies here do not look at them."""
    monkeypatch.setattr(RobotSim, "capture", lambda sim: None)


@pytest.fixture(scope="module")
def sim():
    simulation = RobotSim(0)
    yield simulation
    simulation.close()


def expert(sim):
    def policy(observations):
        goal = sim.grasps()[sim.task.target]
        return [expert_chunks(flat(sim.pose()), flat(goal), np.array(sim.aperture), ROWS)]

    return policy


@pytest.mark.parametrize("timing", [ChunkTiming(), ChunkTiming(every=6), ChunkTiming(every=4, delay=3)])
def test_the_experts_chunks_succeed(sim, timing):
    for seed in range(3):
        sim.reset(seed)
        assert run_chunks([sim], expert(sim), timing) == [EpisodeOutcome.SUCCESS]


@pytest.mark.parametrize(("every", "delay"), [(1, 0), (1, 1), (3, 2), (3, 3)])
def test_a_chunk_arrives_after_its_delay_and_is_executed_from_that_row(sim, every, delay):
    sim.reset(3)
    commanded = []
    original, sim.command = sim.command, lambda goal, gripper: commanded.append((round(sim.time, 3), gripper))
    calls = iter(range(1000))
    try:
        run_chunks([sim], lambda _: [_marked(next(calls))], ChunkTiming(every=every, delay=delay))
    finally:
        sim.command = original
    assert commanded[0] == (round(0.05 * delay, 3), pytest.approx(_mark(0, delay)))
    for tick, (time, mark) in enumerate(commanded[:9], start=delay):
        call = (tick - delay) // every
        assert time == pytest.approx(0.05 * tick)
        assert mark == pytest.approx(_mark(call, tick - call * every))


def _mark(call, row):
    return 1.0 + call + row / 100


def _marked(call):
    chunk = np.zeros((ROWS, 7))
    chunk[:, 6] = [_mark(call, row) for row in range(ROWS)]
    return chunk


def test_what_is_left_of_a_chunk_begins_with_the_row_that_is_due(sim):
    sim.reset(3)
    asked, calls = [], iter(range(1000))

    def policy(observations):
        asked.append(observations[0].left)
        return [_marked(next(calls))]

    run_chunks([sim], policy, ChunkTiming(every=3, delay=2, conditioned=True))
    assert asked[0] is None
    for call, left in enumerate(asked[1:5]):
        assert len(left) == ROWS - 3
        assert left[0, 6] == pytest.approx(_mark(call, 3))


@pytest.mark.parametrize(("every", "delay"), [(0, 0), (2, 3), (1, -1)])
def test_an_impossible_timing_is_rejected(every, delay):
    with pytest.raises(ValueError, match="needs 0 <= delay <= every"):
        ChunkTiming(every=every, delay=delay)
