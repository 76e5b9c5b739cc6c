import numpy as np
import pytest

from edgeflow.lab.demo.lockstep import EpisodeTiming, SuccessRate, run_episode, run_together, success_rate
from edgeflow.lab.demo.world.expert import Expert
from edgeflow.lab.demo.world.sim import RobotSim
from edgeflow.lab.demo.world.task import EpisodeOutcome


@pytest.fixture(autouse=True)
def blind(monkeypatch):
    """Frames are not drawn: the policies here do not look at them."""
    monkeypatch.setattr(RobotSim, "capture", lambda sim: None)


@pytest.fixture
def sim():
    simulation = RobotSim(0)
    yield simulation
    simulation.close()


def test_old_actions_still_succeed_when_anchored(sim):
    for seed in range(4):
        sim.reset(seed)
        assert run_episode(sim, Expert(sim), age_ticks=6, anchored=True) is EpisodeOutcome.SUCCESS


def test_old_actions_applied_to_the_pose_now_take_longer_or_fail(sim):
    def seconds(anchored: bool) -> list[float]:
        times = []
        for seed in range(4):
            sim.reset(seed)
            run_episode(sim, Expert(sim), age_ticks=6, anchored=anchored)
            times.append(sim.time)
        return times

    assert sum(seconds(anchored=False)) > 1.5 * sum(seconds(anchored=True))


def test_a_frames_action_is_applied_after_exactly_its_age(sim):
    sim.reset(3)
    asked = []

    def policy(image, instruction):
        asked.append(sim.time)
        return np.array([0.0, 0.0, 0.05 if len(asked) == 1 else 0.0, 0.0, 0.0, 0.0, 1.0])

    start, moved_at = sim.pose().position, []
    original = sim.step

    def watch(seconds):
        original(seconds)
        if not moved_at and np.linalg.norm(sim.pose().position - start) > 1e-3:
            moved_at.append(sim.time)

    sim.step = watch
    run_episode(sim, policy, period=0.05, age_ticks=3)
    assert 0.15 < moved_at[0] <= 0.21


def test_running_together_gives_what_running_alone_gives():
    sims = [RobotSim(seed) for seed in (1, 2)]
    for sim in sims:
        sim.reset(11)
    experts = [Expert(sim) for sim in sims]
    together = run_together(
        sims, lambda images, texts: np.stack([e(None, "") for e in experts[: len(images)]]), EpisodeTiming()
    )
    alone = RobotSim(11)
    assert together == [run_episode(alone, Expert(alone))] * 2
    for sim in (*sims, alone):
        sim.close()


def test_wilson_interval_of_95_of_100():
    rate = success_rate([EpisodeOutcome.SUCCESS] * 95 + [EpisodeOutcome.TIMEOUT] * 5)
    assert rate == SuccessRate(95, 100)
    assert rate.interval == pytest.approx((0.8882, 0.9785), abs=1e-4)
