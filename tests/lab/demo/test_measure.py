import numpy as np
import pytest

from edgeflow.lab.demo.lockstep import EpisodeCondition, EpisodeTiming, measure, without
from edgeflow.lab.demo.world.expert import expert_action
from edgeflow.lab.demo.world.sim import RobotSim


class SeenThroughSims:
    """An expert for `measure`: notes which simulations were asked for a frame, and draws none."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sims: list[RobotSim] = []
        monkeypatch.setattr(RobotSim, "capture", lambda sim: self.sims.append(sim))

    def __call__(self, images, instructions):
        sims, self.sims = self.sims, []
        return np.stack([expert_action(sim.pose(), sim.grasps()[sim.task.target]) for sim in sims])


@pytest.fixture
def expert(monkeypatch):
    return SeenThroughSims(monkeypatch)


def test_an_exact_policy_succeeds_everywhere(expert):
    result = measure(expert, EpisodeCondition(), episodes=6)
    assert (result.rate.successes, result.rate.episodes) == (6, 6)
    assert 0.5 < result.seconds < 4.0


@pytest.mark.parametrize("dimension", range(7))
def test_no_dimension_can_be_dropped(expert, dimension):
    result = measure(expert, EpisodeCondition(dropped=dimension), episodes=4)
    assert result.rate.successes <= 2


def test_age_hurts_on_moving_objects_even_when_anchored(expert):
    young = measure(expert, EpisodeCondition(0.05), episodes=6)
    old = measure(expert, EpisodeCondition(0.05, EpisodeTiming(age_ticks=8)), episodes=6)
    assert young.rate.successes > old.rate.successes


def test_without_changes_only_its_dimension():
    actions = without(lambda images, texts: np.full((2, 7), 0.5), 6)([], [])
    assert np.array_equal(actions, np.array([[0.5] * 6 + [1.0]] * 2))
