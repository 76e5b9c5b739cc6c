"""A robot in simulated time that executes chunks by the SDK: the expert's chunks succeed, and none is executed too
long.
"""

from __future__ import annotations

import numpy as np
import pytest

from edgeflow.contract import Pace
from edgeflow.engine.control.engine import OnePassEngine
from edgeflow.engine.control.profile import DeviceProfile
from edgeflow.lab.demo.simulated.robot import Delay
from edgeflow.lab.demo.simulated.service import VirtualService
from edgeflow.lab.demo.world.sim import RobotSim
from edgeflow.lab.demo.world.task import EpisodeOutcome
from edgeflow.scheduler.scheduler import SchedulerLimits
from edgeflow_client.types import Execution
from tests.lab.demo.simulated.one_pass import ExpertPolicy

MS = 1_000_000

pytestmark = pytest.mark.usefixtures("blind")


@pytest.fixture(scope="module")
def sim():
    simulation = RobotSim(0, 0.05)
    yield simulation
    simulation.close()


def run(sim, pass_ms, *, period_s=0.05, delay=None, seed=3, execution=Execution.FRESH):
    sim.reset(seed)
    times = DeviceProfile(name="even", prefill_ns=pass_ms * MS, decode_ns=0, packed_ns=pass_ms * MS).times(1)
    limits = SchedulerLimits(1, 1, row_budget=1000, drain_after_ns=0)
    service = VirtualService(OnePassEngine(ExpertPolicy(sim), 1, 10), limits, times, execution=execution)
    return service.run_episode(sim, Pace(1), period_s=period_s, anchored=True, delay=delay)


@pytest.mark.parametrize("pass_ms", [1, 105])
def test_the_experts_chunks_succeed_with_moving_objects(sim, pass_ms):
    results = [run(sim, pass_ms, seed=seed) for seed in range(3)]
    assert [result.outcome for result in results] == [EpisodeOutcome.SUCCESS] * 3
    assert min(min(result.ages_ns) for result in results) == pass_ms * MS


def test_a_first_inference_that_takes_long_skips_no_rows(sim, monkeypatch):
    """The robot rests until then, so that its first command is the first row of the chunk."""
    commands = []
    monkeypatch.setattr(RobotSim, "command", _then(RobotSim.command, lambda sim: commands.append(sim.time)))
    result = run(sim, 1, delay=Delay(700 * MS), execution=Execution.CONTINUE)
    first = result.acted[0]
    assert first.age_ns == 700 * MS
    assert np.diff([first.arrived_ns / 1e9, *commands[1:4]]).tolist() == pytest.approx([0.05] * 3)


@pytest.mark.parametrize("delay", [None, Delay(200 * MS)])
def test_a_resting_robot_captures_once_it_has_executed_its_rows(sim, delay):
    result = run(sim, 100, execution=Execution.REST, delay=delay)
    assert result.outcome is EpisodeOutcome.SUCCESS
    assert set(result.ages_ns) == {200 * MS if delay else 100 * MS}
    waits = [captured - arrived for arrived, captured in zip(*_times(result), strict=False)]
    assert all(8 * 50 * MS <= wait < 9 * 50 * MS for wait in waits)
    assert result.held_ns == 0


def _then(method, also):
    def both(self, *given):
        method(self, *given)
        also(self)

    return both


def _times(result):
    """When each chunk but the last arrived, and when each but the first was asked for."""
    return [each.arrived_ns for each in result.acted[:-1]], [each.captured_ns for each in result.acted[1:]]


def test_runs_repeat(sim):
    assert run(sim, 60) == run(sim, 60)
