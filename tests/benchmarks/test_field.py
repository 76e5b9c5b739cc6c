"""Other clients' playback: its arithmetic by hand, and each client with an expert's chunks in virtual time."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.closed_loop.field.cells import STRATEGIES, field_cells
from benchmarks.closed_loop.field.playback import (
    AGGREGATES,
    aggregated,
    blended,
    ensembled,
    similar,
    wants_observation,
)
from edgeflow.contract import Pace
from edgeflow.engine.control.engine import OnePassEngine
from edgeflow.engine.control.profile import DeviceProfile
from edgeflow.lab.demo.simulated.service import VirtualService
from edgeflow.lab.demo.world.sim import RobotSim
from edgeflow.lab.demo.world.task import EpisodeOutcome
from edgeflow.scheduler.scheduler import SchedulerLimits
from tests.lab.demo.simulated.one_pass import ExpertPolicy

MS = 1_000_000
BY_NAME = {strategy.name: strategy.robot for strategy in STRATEGIES}


def rows(*values):
    return [np.array([value, 1.0]) for value in values]


def firsts(found):
    return [float(row[0]) for row in found]


@pytest.mark.parametrize(
    ("name", "expected"),
    [("weighted_average", 17.0), ("latest_only", 20.0), ("average", 15.0), ("conservative", 13.0)],
)
def test_rows_of_one_timestep_are_aggregated(name, expected):
    """The chunk begins with timestep 4, the executed one; what it lacks of the queue is dropped."""
    queue = dict(zip((5, 6, 9), rows(10.0, 10.0, 10.0), strict=True))
    merged = aggregated(queue, rows(1.0, 20.0, 20.0, 30.0), 4, executed=4, new=AGGREGATES[name])
    assert list(merged) == [5, 6, 7]
    assert firsts(merged.values()) == pytest.approx([expected, expected, 30.0])


def test_a_chunk_that_was_due_before_the_executed_row_empties_the_queue():
    assert aggregated({9: rows(1.0)[0]}, rows(1.0, 2.0), 3, executed=8, new=0.7) == {}


def test_an_observation_is_sent_when_little_of_a_chunk_is_left():
    assert wants_observation(0, 0, 0.5)
    assert wants_observation(8, 16, 0.5)
    assert not wants_observation(9, 16, 0.5)
    assert wants_observation(11, 16, 0.7)


def test_observations_are_similar_below_a_degree():
    processed = np.array([10.0, 20.0, 100.0])
    assert similar(np.array([10.5, 20.5, 100.5]), processed)  # a distance of 0.87
    assert not similar(np.array([10.6, 20.6, 100.6]), processed)  # 1.04


def test_the_first_rows_of_an_overlap_are_blended_except_the_gripper():
    old = [np.array([0.0, 0.0])] * 3
    new = [np.array([1.0, 1.0])] * 6
    assert [list(row) for row in blended(old, new, 2, [1])] == [[0.5, 1.0]] * 2 + [[1.0, 1.0]] * 4
    assert firsts(blended(old, new, 5, [1])) == [0.5] * 3 + [1.0] * 3
    assert list(new[0]) == [1.0, 1.0]


def test_the_oldest_prediction_has_the_largest_weight():
    weights = [1.0, math.exp(-0.01), math.exp(-0.02)]
    expected = (weights[0] * 3.0 + weights[1] * 5.0 + weights[2] * 10.0) / sum(weights)
    assert ensembled(rows(3.0, 5.0, 10.0)) == pytest.approx([expected, 1.0])


def test_each_cell_has_its_own_file():
    cells = field_cells("demo-flow", 50)
    assert len({cell.file for cell in cells}) == len(cells)


@pytest.fixture(scope="module")
def sim():
    simulation = RobotSim(0)
    yield simulation
    simulation.close()


def run(sim, name, pass_ms):
    """The run of a still object, and its robot. Frames are not drawn: the expert does not see them."""
    robots = []

    def make(*parts):
        robots.append(BY_NAME[name](*parts))
        return robots[-1]

    sim.reset(3)
    times = DeviceProfile(name="even", prefill_ns=pass_ms * MS, decode_ns=0, packed_ns=pass_ms * MS).times(1)
    limits = SchedulerLimits(1, 1, row_budget=1000, drain_after_ns=0)
    service = VirtualService(OnePassEngine(ExpertPolicy(sim), 1, 10), limits, times, robot=make)
    return service.run_episode(sim, Pace(1), period_s=0.05, anchored=True), robots[0]


@pytest.mark.parametrize("name", [name for name in BY_NAME if not name.startswith("edgeflow")])
def test_each_client_grasps_a_still_object(sim, name):
    result, robot = run(sim, name, 110)
    assert result.outcome is EpisodeOutcome.SUCCESS
    assert not robot.faulted
    assert len(result.acted) > 1


def test_a_broker_executes_its_rows_and_then_waits(sim):
    """The two first rows follow each other at once, and the next frame is taken a step after the eighth."""
    result, _ = run(sim, "openpi broker", 110)
    first, second = result.acted[:2]
    assert first.arrived_ns - first.captured_ns == 110 * MS
    assert second.captured_ns - first.arrived_ns == 7 * 50 * MS


def test_an_asynchronous_client_asks_at_half_a_chunk(sim):
    """16 rows: the second chunk is asked for with eight left, from timestep 7, and executed from the row after that."""
    result, _ = run(sim, "LeRobot async, weighted_average, 0.5", 110)
    first, second = result.acted[:2]
    assert first.arrived_ns == 150 * MS  # the turn after the answer
    assert second.captured_ns - first.arrived_ns == 7 * 50 * MS
    assert second.arrived_ns - second.captured_ns == 150 * MS


def test_aligned_playback_gives_up_when_its_rows_are_over(sim):
    result, robot = run(sim, "LeRobot remote, aligned", 700)
    assert robot.faulted
    assert result.outcome is EpisodeOutcome.TIMEOUT
    assert result.held_ns > 0
