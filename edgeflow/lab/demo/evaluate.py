"""Closed-loop evaluation in simulated time: how often a policy succeeds, given how old its actions are."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from edgeflow.lab.demo.recording import wilson
from edgeflow.lab.demo.world.expert import action_goal
from edgeflow.lab.demo.world.scene import Image
from edgeflow.lab.demo.world.sim import RobotSim
from edgeflow.lab.demo.world.task import Outcome
from edgeflow_client.pose import Pose

Asked = TypeVar("Asked")
Answered = TypeVar("Answered")
Policy = Callable[[Image, str], NDArray[np.floating]]
BatchPolicy = Callable[[Sequence[Image], Sequence[str]], NDArray[np.floating]]
Episode = Generator[tuple[Image, str], NDArray[np.floating], Outcome]


@dataclass(frozen=True, slots=True)
class Timing:
    """Timing of an episode. period: seconds per tick. age_ticks: ticks from a frame to its action. anchored: a relative
    action is resolved against the tool pose of the frame it answers, otherwise against the current pose.
    """

    period: float = 0.05
    age_ticks: int = 0
    anchored: bool = True


def episode(sim: RobotSim, timing: Timing) -> Episode:
    """One episode as a generator: yields each tick's frame and instruction, is sent the frame's action."""
    in_flight: list[tuple[Pose, NDArray[np.floating]]] = []
    while sim.outcome is Outcome.RUNNING:
        frame_pose = sim.pose()
        in_flight.append((frame_pose, (yield sim.capture(), sim.instruction)))
        if len(in_flight) > timing.age_ticks:
            anchor, action = in_flight.pop(0)
            apply_action(sim, anchor if timing.anchored else frame_pose, action)
        sim.step(timing.period)
    return sim.outcome


def apply_action(sim: RobotSim, anchor: Pose, action: NDArray[np.floating]) -> None:
    """Command the goal of an action `[7]`, its relative part resolved against `anchor`."""
    sim.command(action_goal(anchor, np.asarray(action, np.float64)), float(action[6]))


def run_episode(
    sim: RobotSim, policy: Policy, period: float = 0.05, age_ticks: int = 0, anchored: bool = True
) -> Outcome:
    """Run the simulation's episode to its end under a policy."""
    return run_together([sim], _one_by_one(policy), Timing(period, age_ticks, anchored))[0]


def _one_by_one(policy: Policy) -> BatchPolicy:
    return lambda images, texts: np.stack([policy(image, text) for image, text in zip(images, texts, strict=True)])


def run_together(sims: Sequence[RobotSim], policy: BatchPolicy, timing: Timing) -> list[Outcome]:
    """Run one episode in each simulation, in lockstep, with one batched policy call per tick."""

    def answer(asked: Sequence[tuple[Image, str]]) -> NDArray[np.floating]:
        images, texts = zip(*asked, strict=True)
        return policy(images, texts)

    return run_in_lockstep([episode(sim, timing) for sim in sims], answer)


def run_in_lockstep(
    episodes: Sequence[Generator[Asked, Answered, Outcome]],
    answer: Callable[[Sequence[Asked]], Iterable[Answered]],
) -> list[Outcome]:
    """Run episodes to their ends; what all of them ask for is answered together."""
    waiting = {index: next(run) for index, run in enumerate(episodes)}
    outcomes: dict[int, Outcome] = {}
    while waiting:
        answers = answer(list(waiting.values()))
        for index, answered in zip(list(waiting), answers, strict=True):
            try:
                waiting[index] = episodes[index].send(answered)
            except StopIteration as end:
                del waiting[index]
                outcomes[index] = end.value
    return [outcomes[index] for index in range(len(episodes))]


@dataclass(frozen=True, slots=True)
class SuccessRate:
    """Successes out of a number of episodes, with a 95 % Wilson interval."""

    successes: int
    episodes: int

    @property
    def share(self) -> float:
        return self.successes / self.episodes

    @property
    def interval(self) -> tuple[float, float]:
        estimate = wilson(self.successes, self.episodes)
        return estimate.low, estimate.high


def success_rate(outcomes: Sequence[Outcome]) -> SuccessRate:
    return SuccessRate(sum(outcome is Outcome.SUCCESS for outcome in outcomes), len(outcomes))
