"""Success tables of a policy over fresh episodes: object speed, action age, anchoring, one dimension dropped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from edgeflow.lab.demo.evaluate import BatchPolicy, SuccessRate, Timing, run_together, success_rate
from edgeflow.lab.demo.world.scene import Image
from edgeflow.lab.demo.world.sim import RobotSim
from edgeflow.lab.demo.world.task import Outcome

FRESH_SEEDS: Final = 1_000_000  # episodes counted from here were never trained on
_TOGETHER: Final = 25  # simulations in lockstep
_NEUTRAL: Final = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0)  # no motion, gripper open


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition. object_speed: m/s. dropped: index of an action dimension replaced by its neutral value."""

    object_speed: float = 0.0
    timing: Timing = field(default_factory=Timing)
    dropped: int | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """Success and its outcomes. seconds: mean length of the successful episodes in simulated time; NaN without any."""

    rate: SuccessRate
    outcomes: dict[str, int]
    seconds: float


def measure(policy: BatchPolicy, condition: Condition, episodes: int, first_seed: int = FRESH_SEEDS) -> Result:
    """Run `episodes` episodes, of seeds first_seed, first_seed + 1, ..."""
    asked = policy if condition.dropped is None else without(policy, condition.dropped)
    return measure_runs(
        lambda sims: run_together(sims, asked, condition.timing), condition.object_speed, episodes, first_seed
    )


def measure_runs(
    run: Callable[[Sequence[RobotSim]], list[Outcome]],
    object_speed: float,
    episodes: int,
    first_seed: int = FRESH_SEEDS,
) -> Result:
    """Run `episodes` episodes, of seeds first_seed, first_seed + 1, ...; `run` runs one in each of some simulations."""
    outcomes: list[Outcome] = []
    seconds: list[float] = []
    for sims in _groups(episodes, first_seed, object_speed):
        ended = run(sims)
        outcomes += ended
        seconds += [sim.time for sim, end in zip(sims, ended, strict=True) if end is Outcome.SUCCESS]
    mean = float(np.mean(seconds)) if seconds else float("nan")
    return Result(success_rate(outcomes), dict(Counter(outcome.value for outcome in outcomes)), mean)


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
