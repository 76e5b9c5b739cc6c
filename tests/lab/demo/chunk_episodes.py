"""Episodes of a policy that answers with chunks, in simulated time: replanned, delayed, conditioned on the last one."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgeflow.lab.demo.lockstep import run_in_lockstep
from edgeflow.lab.demo.world.robot import state_of
from edgeflow.lab.demo.world.scene import Image
from edgeflow.lab.demo.world.sim import RobotSim
from edgeflow.lab.demo.world.task import EpisodeOutcome
from edgeflow_client.pose import Pose, Vector, from_rotvec
from edgeflow_client.pose import compose as composed

Rows: TypeAlias = NDArray[np.floating]


@dataclass(frozen=True, slots=True)
class ChunkTiming:
    """Timing of an episode."""

    period: float = 0.05
    """Seconds per row."""
    every: int = 1
    """Rows from one capture to the next."""
    delay: int = 0
    """Rows from a capture to its chunk's arrival, at most `every`."""
    conditioned: bool = False
    """A chunk is asked for with the rest of the one before."""

    def __post_init__(self) -> None:
        if not 0 <= self.delay <= self.every or self.every < 1:
            raise ValueError(f"needs 0 <= delay <= every and every >= 1, got {self}")


@dataclass(frozen=True, slots=True, eq=False)
class EpisodeFrame:
    """A frame, and what comes with it."""

    image: Image
    instruction: str
    state: Vector
    """`[7]`."""
    left: Rows | None = None
    """`[n, 7]`, rows of the chunk in execution from this moment on; the first `delay` are executed before the
    answer arrives; None = not conditioned.
    """
    delay: int = 0


ChunkPolicy = Callable[[Sequence[EpisodeFrame]], Sequence[Rows]]


def chunk_episode(sim: RobotSim, timing: ChunkTiming) -> Generator[EpisodeFrame, Rows, EpisodeOutcome]:
    """One episode as a generator: yields an observation, is sent its chunk `[rows, 7]`.

    A row is due at its moment, counted from the capture; against the pose of the frame it is the motion of all rows up
    to it. The arm rests until the first chunk arrives, and once a chunk is over.
    """
    anchor, age = sim.pose(), 0
    chunk: Rows = np.zeros((0, 7))
    while sim.outcome is EpisodeOutcome.RUNNING:
        left = chunk[age:] if timing.conditioned and age < len(chunk) else None
        pose = sim.pose()
        answer = yield EpisodeFrame(sim.capture(), sim.instruction, state_of(pose, sim.aperture), left, timing.delay)
        for tick in range(timing.every):
            if tick == timing.delay:
                anchor, chunk, age = pose, answer, timing.delay
            _play(sim, anchor, chunk, age)
            age += 1
            sim.step(timing.period)
        if timing.delay == timing.every:
            anchor, chunk, age = pose, answer, timing.delay
    return sim.outcome


def _play(sim: RobotSim, anchor: Pose, chunk: Rows, row: int) -> None:
    if row >= len(chunk):
        sim.hold()
        return
    for each in np.asarray(chunk[: row + 1], np.float64):
        anchor = composed(anchor, Pose(each[:3], wxyz=from_rotvec(each[3:6])))
    sim.command(anchor, float(chunk[row, 6]))


def run_chunks(sims: Sequence[RobotSim], policy: ChunkPolicy, timing: ChunkTiming) -> list[EpisodeOutcome]:
    """Run one episode in each simulation, with batched policy calls."""
    return run_in_lockstep([chunk_episode(sim, timing) for sim in sims], policy)
