"""The real worker in virtual time: ages are what the pass times make them, and runs repeat."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from edgeflow.contract import Pace, PassTimes, Speculation
from edgeflow.engine.control.engine import PolicyEngine
from edgeflow.engine.control.profile import DeviceProfile
from edgeflow.lab.demo.simulated.episodes import HELD, EpisodeRun
from edgeflow.lab.demo.simulated.measures import execution_figures
from edgeflow.lab.demo.simulated.robot import Delay
from edgeflow.lab.demo.simulated.service import VirtualService
from edgeflow.lab.demo.world.sim import RobotSim
from edgeflow.lab.demo.world.task import EpisodeOutcome
from edgeflow.lab.openvla_policy import load_openvla
from edgeflow.scheduler.scheduler import SchedulerLimits
from tests.tiny_checkpoint import write_checkpoint

CPU = torch.device("cpu")
MS = 1_000_000
SERIAL, PIPELINED, EXACT, ONE_PASS = Pace(1), Pace(7), Pace(0, Speculation()), Pace(0, Speculation(max_passes=1))
AT_ONCE = PassTimes(stages=7, prefill_ns=0, two_prefills_ns=0, packed_ns=0, decode_ns=0, decodes_ns=0)


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    torch.set_num_threads(1)
    policy = load_openvla(write_checkpoint(tmp_path_factory.mktemp("tiny")), torch.float32, CPU)
    return PolicyEngine(policy, policy.K, 160)


@pytest.fixture(scope="module")
def sim():
    simulation = RobotSim(0)
    yield simulation
    simulation.close()


def even(packed_ms: int, decode_ms: int) -> PassTimes:
    return DeviceProfile(
        name="even", prefill_ns=packed_ms * MS, decode_ns=decode_ms * MS, packed_ns=packed_ms * MS
    ).times(7)


def run(
    engine,
    sim,
    pace: Pace,
    times: PassTimes,
    *,
    period_s: float = 0.1,
    anchored: bool = True,
    delay: Delay | None = None,
) -> EpisodeRun:
    sim.reset(11)
    limits = SchedulerLimits(engine.policy.K, 1, row_budget=1000, drain_after_ns=0)
    service = VirtualService(engine, limits, times)
    return service.run_episode(sim, pace, period_s=period_s, anchored=anchored, delay=delay)


def test_serial_age_is_the_sum_of_its_passes(engine, sim):
    result = run(engine, sim, SERIAL, even(20, 5))
    assert result.outcome in (EpisodeOutcome.TIMEOUT, EpisodeOutcome.WRONG_TARGET, EpisodeOutcome.SUCCESS)
    assert set(result.ages_ns) == {20 * MS + 6 * 5 * MS}
    assert result.actions in (result.frames, result.frames - 1)


def test_a_saturated_pipeline_answers_every_pass_and_is_k_passes_old(engine, sim):
    """Frames come faster than passes: one action a packed pass, aged K passes and what it waited."""
    result = run(engine, sim, PIPELINED, even(60, 20), period_s=0.02)
    steady = result.ages_ns[engine.policy.K :]
    assert min(steady) >= 7 * 60 * MS
    assert max(steady) <= 8 * 60 * MS
    assert result.actions / result.seconds == pytest.approx(1 / 0.06, rel=0.1)


def test_a_slow_camera_lets_the_pipeline_drain(engine, sim):
    """No frame waits: decode-only passes bring the action out before the next frame."""
    result = run(engine, sim, PIPELINED, even(20, 5), period_s=0.2)
    assert set(result.ages_ns) == {20 * MS + 6 * 5 * MS}


def test_runs_repeat(engine, sim):
    times = even(30, 10)
    assert run(engine, sim, PIPELINED, times) == run(engine, sim, PIPELINED, times)


def test_anchoring_changes_the_course(engine, sim):
    times = even(60, 20)
    sim.reset(11)
    poses = []
    for anchored in (True, False):
        run(engine, sim, PIPELINED, times, anchored=anchored)
        poses.append(sim.pose().position.tolist())
    assert poses[0] != poses[1]


def test_a_frame_that_leaves_after_one_pass_is_one_pass_old(engine, sim):
    result = run(engine, sim, ONE_PASS, even(60, 20))
    assert {action.passes for action in result.acted} == {1}
    assert set(result.ages_ns) == {60 * MS}
    assert {action.settled for action in result.acted} <= set(range(8))
    assert result.overtaken == 0


def test_frames_that_newer_ones_overtake_are_begun_but_not_acted_on(engine, sim):
    """Every frame that starts yields one action, is overtaken, or is still in flight at the end."""
    result = run(engine, sim, EXACT, even(60, 20), period_s=0.02)
    assert result.begun > result.actions > 0
    assert 0 <= result.begun - result.actions - result.overtaken < 7
    assert {action.settled for action in result.acted} == {7}
    assert all(1 <= action.passes <= 7 for action in result.acted)


def test_only_frames_that_are_begun_are_drawn_and_as_they_were_captured(engine, sim, monkeypatch):
    moment_of, draw = RobotSim.moment, RobotSim.draw
    drawn, captured = [], {}

    def moment(self):
        now = moment_of(self)
        captured[id(now)] = now, draw(self, now)
        return now

    def noted(self, then):
        drawn.append((then, draw(self, then)))
        return drawn[-1][1]

    monkeypatch.setattr(RobotSim, "moment", moment)
    monkeypatch.setattr(RobotSim, "draw", noted)
    result = run(engine, sim, SERIAL, even(60, 20), period_s=0.02)
    assert result.begun <= len(drawn) <= result.begun + 1 < result.frames / 4
    assert len({picture.tobytes() for _, picture in drawn}) > 10
    assert all(picture.tobytes() == captured[id(then)][1].tobytes() for then, picture in drawn)


def test_an_injected_delay_is_the_age_of_every_action(engine, sim):
    result = run(engine, sim, SERIAL, AT_ONCE, delay=Delay(130 * MS))
    assert set(result.ages_ns) == {130 * MS}
    assert result.actions in (result.frames - 1, result.frames - 2)


def test_a_jittered_delay_stays_in_its_bounds_and_in_order(engine, sim):
    result = run(engine, sim, SERIAL, AT_ONCE, period_s=0.05, delay=Delay(200 * MS, 150 * MS, seed=3))
    assert 50 * MS <= min(result.ages_ns) < max(result.ages_ns) <= 350 * MS
    captured = [action.captured_ns for action in result.acted]
    assert captured == sorted(set(captured)), "a late action is never obeyed after a newer one"
    assert result.actions < result.frames - 10
    assert result == run(engine, sim, SERIAL, AT_ONCE, period_s=0.05, delay=Delay(200 * MS, 150 * MS, seed=3))


def test_a_run_survives_the_way_through_json(engine, sim):
    result = run(engine, sim, EXACT, even(60, 20))
    assert EpisodeRun.from_json(json.loads(json.dumps(result.as_json()))) == result


def test_every_executed_action_is_a_command(engine, sim):
    result = run(engine, sim, SERIAL, even(20, 5))
    executed = [(row.captured_ns, row.at_ns) for row in result.commands if row.captured_ns != HELD]
    assert executed == [(action.captured_ns, action.arrived_ns) for action in result.acted]


def test_the_robot_reacts_to_an_object_that_jumps(engine):
    sim = RobotSim(0, object_jump_m=0.04)
    result = run(engine, sim, SERIAL, even(20, 5))
    figures = execution_figures([result], 0.05).reaction
    assert sim.jump is not None and result.jumped_ns == round(sim.jump.at_s * 1e9)
    assert np.linalg.norm(sim.jump.by) == pytest.approx(0.04)
    assert figures.first.count == figures.towards.count == 1
    assert 0 < figures.first.max <= figures.towards.max < 1000
    sim.close()
