"""The real worker in virtual time: ages are what the pass times make them, and runs repeat."""

from __future__ import annotations

import pytest
import torch

from edgeflow.demo.sim import RobotSim
from edgeflow.demo.task import Outcome
from edgeflow.demo.virtual import EpisodeRun, VirtualService
from edgeflow.engine.control.actions import PolicyEngine
from edgeflow.engine.control.profile import DeviceProfile
from edgeflow.models.openvla.policy import OpenVLAPolicy
from edgeflow.scheduler.scheduler import SchedulerLimits
from edgeflow.types import Mode
from tests.tiny_checkpoint import write_checkpoint

CPU = torch.device("cpu")
MS = 1_000_000


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    torch.set_num_threads(1)
    policy = OpenVLAPolicy.load(write_checkpoint(tmp_path_factory.mktemp("tiny")), torch.float32, CPU)
    return PolicyEngine(policy, policy.K, 160)


@pytest.fixture(scope="module")
def sim():
    simulation = RobotSim(0)
    yield simulation
    simulation.close()


def run(engine, sim, mode: Mode, profile: DeviceProfile, *, period_s: float = 0.1, anchored: bool = True) -> EpisodeRun:
    sim.reset(11)
    limits = SchedulerLimits(engine.policy.K, 1, row_budget=1000, drain_after_ns=0)
    return VirtualService(engine, limits, profile).run_episode(sim, mode, period_s=period_s, anchored=anchored)


def test_serial_age_is_the_sum_of_its_passes(engine, sim):
    result = run(engine, sim, Mode.SERIAL, DeviceProfile("even", 20 * MS, 5 * MS, 21 * MS))
    assert result.outcome in (Outcome.TIMEOUT, Outcome.WRONG_TARGET, Outcome.SUCCESS)
    assert set(result.ages_ns) == {20 * MS + 6 * 5 * MS}
    assert result.actions in (result.frames, result.frames - 1)


def test_a_saturated_pipeline_answers_every_pass_and_is_k_passes_old(engine, sim):
    """Frames come faster than passes: one action a packed pass, aged K passes and what it waited."""
    result = run(engine, sim, Mode.PIPELINED, DeviceProfile("even", 60 * MS, 20 * MS, 60 * MS), period_s=0.02)
    steady = result.ages_ns[engine.policy.K :]
    assert min(steady) >= 7 * 60 * MS
    assert max(steady) <= 8 * 60 * MS
    assert result.actions / result.seconds == pytest.approx(1 / 0.06, rel=0.1)


def test_a_slow_camera_lets_the_pipeline_drain(engine, sim):
    """No frame waits: decode-only passes bring the action out before the next frame."""
    result = run(engine, sim, Mode.PIPELINED, DeviceProfile("even", 20 * MS, 5 * MS, 21 * MS), period_s=0.2)
    assert set(result.ages_ns) == {20 * MS + 6 * 5 * MS}


def test_runs_repeat(engine, sim):
    profile = DeviceProfile("even", 30 * MS, 10 * MS, 30 * MS)
    assert run(engine, sim, Mode.PIPELINED, profile) == run(engine, sim, Mode.PIPELINED, profile)


def test_anchoring_changes_the_course(engine, sim):
    profile = DeviceProfile("even", 60 * MS, 20 * MS, 60 * MS)
    sim.reset(11)
    poses = []
    for anchored in (True, False):
        run(engine, sim, Mode.PIPELINED, profile, anchored=anchored)
        poses.append(sim.pose().position.tolist())
    assert poses[0] != poses[1]
