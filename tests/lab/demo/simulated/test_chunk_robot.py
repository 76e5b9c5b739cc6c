"""A robot in simulated time that executes chunks by the SDK: the expert's chunks succeed, and none is executed too
long.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from edgeflow.contract import Pace
from edgeflow.engine.control.engine import OnePassEngine
from edgeflow.engine.control.profile import DeviceProfile
from edgeflow.lab.demo.flow_training.chunks import expert_chunks
from edgeflow.lab.demo.simulated.episodes import Execution
from edgeflow.lab.demo.simulated.robot import Delay
from edgeflow.lab.demo.simulated.service import VirtualService
from edgeflow.lab.demo.world.layout import TOOL_DOWN
from edgeflow.lab.demo.world.sim import RobotSim
from edgeflow.lab.demo.world.task import EpisodeOutcome
from edgeflow.scheduler.scheduler import SchedulerLimits
from edgeflow_client.pose import from_rotvec, multiply
from tests.lab.demo.flow_training.reference import flat
from tests.lab.demo.simulated.one_pass import ROWS, OnePassStub

MS = 1_000_000

pytestmark = pytest.mark.usefixtures("blind")


class ExpertPolicy(OnePassStub):
    """A policy that reads the state it is sent and knows where the handle is."""

    def __init__(self, sim: RobotSim) -> None:
        self._sim = sim

    def prepare(self, observation):
        state = np.array(observation.state["observation.state"])
        return np.concatenate([state[:3], multiply(TOOL_DOWN, from_rotvec(state[3:6]))]), state[6]

    def chunks(self, frames):
        grasp = flat(self._sim.grasps()[self._sim.task.target])
        return torch.from_numpy(np.stack([expert_chunks(tool, grasp, aperture, ROWS) for tool, aperture in frames]))


@pytest.fixture(scope="module")
def sim():
    simulation = RobotSim(0, 0.05)
    yield simulation
    simulation.close()


def run(sim, pass_ms, *, period_s=0.05, delay=None, seed=3, execution=Execution.FRESH):
    sim.reset(seed)
    times = DeviceProfile("even", pass_ms * MS, 0, pass_ms * MS).times(1)
    limits = SchedulerLimits(1, 1, row_budget=1000, drain_after_ns=0)
    service = VirtualService(OnePassEngine(ExpertPolicy(sim), 1, 10), limits, times, execution=execution)
    return service.run_episode(sim, Pace(1), period_s=period_s, anchored=True, delay=delay)


@pytest.mark.parametrize("pass_ms", [1, 105])
def test_the_experts_chunks_succeed_with_moving_objects(sim, pass_ms):
    results = [run(sim, pass_ms, seed=seed) for seed in range(3)]
    assert [result.outcome for result in results] == [EpisodeOutcome.SUCCESS] * 3
    assert min(min(result.ages_ns) for result in results) == pass_ms * MS


def test_a_delayed_chunk_is_executed_from_the_row_that_is_due(sim):
    result = run(sim, 1, delay=Delay(200 * MS))
    assert result.outcome is EpisodeOutcome.SUCCESS
    assert min(result.ages_ns) == 200 * MS


def test_without_answers_a_robot_stops_when_its_chunk_expires(sim, monkeypatch):
    """The first answer takes 100 ms, the next one comes after its validity of 250 ms: HOLD in between."""
    held = []
    monkeypatch.setattr(RobotSim, "hold", lambda self: held.append(self.time))
    run(sim, 100, period_s=2.0)
    assert held[0] <= 0.1  # before the first answer
    assert min(time for time in held if time > 0.1) == pytest.approx(0.35, abs=0.02)


@pytest.mark.parametrize("delay", [None, Delay(200 * MS)])
def test_a_synchronous_robot_rests_while_it_waits(sim, delay, monkeypatch):
    held = []
    monkeypatch.setattr(RobotSim, "hold", _then(RobotSim.hold, lambda sim: held.append(sim.time)))
    result = run(sim, 100, execution=Execution.SYNCHRONOUS, delay=delay)
    assert result.outcome is EpisodeOutcome.SUCCESS
    assert set(result.ages_ns) == {200 * MS if delay else 100 * MS}
    waits = [captured - arrived for arrived, captured in zip(*_times(result), strict=False)]
    assert set(waits) == {8 * 50 * MS}
    assert len(held) == len(waits)


def _then(method, also):
    def both(self):
        method(self)
        also(self)

    return both


def _times(result):
    """When each chunk but the last arrived, and when each but the first was asked for."""
    return [each.arrived_ns for each in result.acted[:-1]], [each.captured_ns for each in result.acted[1:]]


def test_runs_repeat(sim):
    assert run(sim, 60) == run(sim, 60)
