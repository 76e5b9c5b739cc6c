"""The jumps of the commanded motion where a robot goes over to another chunk.

They are measured on the arm's set point, the same for every client: the simulated controller moves it towards the last
commanded pose, at most at the arm's speed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from benchmarks.closed_loop.measures import STEP_NS
from edgeflow.lab.demo.world.sim import RobotSim
from edgeflow_client.pose import Vector

WINDOW: Final = 5  # control steps over which a velocity is taken: one row of 50 ms


@dataclass(frozen=True, slots=True)
class SeamJumps:
    """The change of the commanded motion at a seam."""

    position_m: float
    """The distance from the last target before to the first one after."""
    velocity_m_s: float
    """The change between the mean velocities over WINDOW before and after."""
    acceleration_m_s2: float
    """The change between the accelerations, each from two such velocities."""


class LoggedSim(RobotSim):
    """A simulation that logs what the arm is commanded.

    goals, velocities: per control step, the commanded position, and the velocity of the set point in m/s.
    """

    def reset(self, seed: int) -> None:
        super().reset(seed)
        self.goals: list[Vector] = [self.goal().position]
        self.velocities: list[Vector] = [np.zeros(3)]

    def step(self, seconds: float) -> None:
        for _ in range(round(seconds * 1e9 / STEP_NS)):
            self.goals.append(self.goal().position)
            self.velocities.append(self.commanded_velocity())
            super().step(STEP_NS / 1e9)


def seam_jumps(seams_ns: Sequence[int], sim: LoggedSim) -> list[SeamJumps]:
    """The jumps at the times from which another chunk is executed, in an episode that has ended.

    The first chunk is left out, and a seam too near to the end to be measured.
    """
    rest = np.zeros((2 * WINDOW, 3))
    goals, velocities = np.array(sim.goals), np.concatenate([rest, sim.velocities])
    jumps = []
    for seam_ns in seams_ns[1:]:
        step = round(seam_ns / STEP_NS) + 1  # the control step that heads for the new target; step 0 is the start
        around = velocities[step : step + 4 * WINDOW].reshape(-1, WINDOW, 3) if _fits(step, sim) else None
        if around is not None:
            before, last, first, after = around.mean(1)
            bend = (after - first) - (last - before)
            jumps.append(
                SeamJumps(
                    position_m=float(np.linalg.norm(goals[step] - goals[step - 1])),
                    velocity_m_s=float(np.linalg.norm(first - last)),
                    acceleration_m_s2=float(np.linalg.norm(bend)) * 1e9 / (WINDOW * STEP_NS),
                )
            )
    return jumps


def _fits(step: int, sim: LoggedSim) -> bool:
    return step + 2 * WINDOW <= len(sim.velocities)
