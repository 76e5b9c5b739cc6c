"""Closed-loop evaluation in simulated time: how often a policy succeeds, depending on the age of its actions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from edgeflow.lab.demo.recording import wilson
from edgeflow.lab.demo.world.expert import action_goal
from edgeflow.lab.demo.world.scene import Image
from edgeflow.lab.demo.world.sim import RobotSim
from edgeflow.lab.demo.world.task import EpisodeOutcome
from edgeflow_client.pose import Pose

Asked = TypeVar("Asked")
Answered = TypeVar("Answered")
Policy = Callable[[Image, str], NDArray[np.floating]]
BatchPolicy = Callable[[Sequence[Image], Sequence[str]], NDArray[np.floating]]
Episode = Generator[tuple[Image, str], NDArray[np.floating], EpisodeOutcome]
FRESH_SEEDS: Final = 1_000_000  # training never saw the episodes from here on
_TOGETHER: Final = 25  # simulations in lockstep
_NEUTRAL: Final = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0)  # no motion, gripper open


@dataclass(frozen=True, slots=True)
class EpisodeTiming:
    """Timing of an episode."""

    period: float = 0.05
    """Seconds per tick."""
    age_ticks: int = 0
    """Ticks from a frame to its action."""
    anchored: bool = True
    """True: a relative action is resolved against the tool pose in its frame; False: against the current pose."""


def episode(sim: RobotSim, timing: EpisodeTiming) -> Episode:
    """One episode as a generator: yields the frame and instruction of each tick and receives the frame's action."""
    in_flight: list[tuple[Pose, NDArray[np.floating]]] = []
    while sim.outcome is EpisodeOutcome.RUNNING:
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
) -> EpisodeOutcome:
    """Run the simulation's episode to its end under a policy."""

    def one_by_one(images: Sequence[Image], texts: Sequence[str]) -> NDArray[np.floating]:
        return np.stack([policy(image, text) for image, text in zip(images, texts, strict=True)])

    return run_together([sim], one_by_one, EpisodeTiming(period, age_ticks, anchored))[0]


def run_together(sims: Sequence[RobotSim], policy: BatchPolicy, timing: EpisodeTiming) -> list[EpisodeOutcome]:
    """Run one episode in each simulation, in lockstep, with one batched policy call per tick."""

    def answer(asked: Sequence[tuple[Image, str]]) -> NDArray[np.floating]:
        images, texts = zip(*asked, strict=True)
        return policy(images, texts)

    return run_in_lockstep([episode(sim, timing) for sim in sims], answer)


def run_in_lockstep(
    episodes: Sequence[Generator[Asked, Answered, EpisodeOutcome]],
    answer: Callable[[Sequence[Asked]], Iterable[Answered]],
) -> list[EpisodeOutcome]:
    """Run episodes to their ends; each round of requests is answered as one batch."""
    waiting = {index: next(run) for index, run in enumerate(episodes)}
    outcomes: dict[int, EpisodeOutcome] = {}
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


def success_rate(outcomes: Sequence[EpisodeOutcome]) -> SuccessRate:
    return SuccessRate(sum(outcome is EpisodeOutcome.SUCCESS for outcome in outcomes), len(outcomes))


@dataclass(frozen=True, slots=True)
class EpisodeCondition:
    """A condition."""

    object_speed: float = 0.0
    """Speed of the objects in m/s."""
    timing: EpisodeTiming = field(default_factory=EpisodeTiming)
    dropped: int | None = None
    """Index of an action dimension that is replaced by its neutral value."""


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """The success rate, and the outcome of every episode."""

    rate: SuccessRate
    outcomes: dict[str, int]
    seconds: float
    """Mean simulated length of the successful episodes; NaN if there are none."""


def measure(
    policy: BatchPolicy, condition: EpisodeCondition, episodes: int, first_seed: int = FRESH_SEEDS
) -> EvaluationResult:
    """Run `episodes` episodes with the seeds first_seed, first_seed + 1, ..."""
    asked = policy if condition.dropped is None else without(policy, condition.dropped)
    return measure_runs(
        lambda sims: run_together(sims, asked, condition.timing), condition.object_speed, episodes, first_seed
    )


def measure_runs(
    run: Callable[[Sequence[RobotSim]], list[EpisodeOutcome]],
    object_speed: float,
    episodes: int,
    first_seed: int = FRESH_SEEDS,
) -> EvaluationResult:
    """Run `episodes` episodes with the seeds first_seed, first_seed + 1, ...

    run: runs one episode in each of the given simulations.
    """
    outcomes: list[EpisodeOutcome] = []
    seconds: list[float] = []
    for sims in _groups(episodes, first_seed, object_speed):
        ended = run(sims)
        outcomes += ended
        seconds += [sim.time for sim, end in zip(sims, ended, strict=True) if end is EpisodeOutcome.SUCCESS]
    mean = float(np.mean(seconds)) if seconds else float("nan")
    return EvaluationResult(success_rate(outcomes), dict(Counter(outcome.value for outcome in outcomes)), mean)


def _groups(episodes: int, first_seed: int, object_speed: float) -> Iterator[list[RobotSim]]:
    """Yield the same few simulations, reset to the next seeds each time."""
    sims = [RobotSim(first_seed, object_speed) for _ in range(min(_TOGETHER, episodes))]
    for start in range(0, episodes, len(sims)):
        group = sims[: episodes - start]
        for offset, sim in enumerate(group):
            sim.reset(first_seed + start + offset)
        yield group
    for sim in sims:
        sim.close()


def without(policy: BatchPolicy, dimension: int) -> BatchPolicy:
    """Wrap a policy so that one action dimension is always neutral."""

    def ablated(images: Sequence[Image], instructions: Sequence[str]) -> NDArray[np.floating]:
        actions = policy(images, instructions).copy()
        actions[:, dimension] = _NEUTRAL[dimension]
        return actions

    return ablated
