"""The goal of a policy whose actions are the whole way to their target, and how it moves.

Each answer of such a policy names a pose: where its goal was when the frame was captured. Goals of successive answers
on a line belong to an object in steady motion, so the robot can aim at where it is by now. A policy is less exact the
farther it is from its goal: a motion has to exceed that. The limits below were chosen on simulated objects of 0 to
5 cm/s (docs/benchmarks/closed-loop.md has what they give).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgeflow_client.pose import Vector

MOST_GOALS = 4
LONGEST_NS = 1_300_000_000
"""Between the captures of the first and the last goal."""
SHORTEST_NS = 150_000_000
"""The same; over less time, the spread of goals says nothing about a speed."""
OFF_LINE_M, OFF_LINE_SHARE = 0.005, 0.05
"""How far goals may be off the line, and more per metre of the way to them."""
LEAST_M, LEAST_SHARE = 0.008, 0.1
"""How far the goal must have moved, and more per metre of the way to it; less may be the policy's error."""
FASTEST_M_S = 0.15
"""Goals that move faster are taken for two goals."""
STEP_NS = 20_000_000
"""After so long a followed target is resolved anew."""


@dataclass(frozen=True, slots=True, eq=False)
class SeenGoal:
    """The goal that an answer names."""

    captured_ns: int
    position: Vector
    """`[3]`, metres, in the frame of the poses that are pushed."""
    way_m: float
    """The way to it from the tool, at the capture."""


class GoalTrack:
    """The goals of the present motion, oldest first."""

    def __init__(self) -> None:
        self._goals: list[SeenGoal] = []

    def restart(self) -> None:
        """Forget all goals: the robot held, or its task changed."""
        self._goals.clear()

    def add(self, goal: SeenGoal) -> None:
        """Add the goal of an accepted answer; of answers in quick succession, the last one is kept."""
        kept = self._goals
        if len(kept) > 1 and kept[-1].captured_ns - kept[-2].captured_ns < SHORTEST_NS:
            kept = kept[:-1]
        self._goals = [*kept, goal][-MOST_GOALS:]

    def velocity(self, goal: SeenGoal) -> Vector:
        """The velocity `[3]` of the next goal in m/s; 0 unless it and the ones before show a motion.

        It is that of the longest run of goals on a line: after a turn the run begins anew.
        """
        run = [*self._goals[-MOST_GOALS + 1 :], goal]
        while (lasted_ns := goal.captured_ns - run[0].captured_ns) >= SHORTEST_NS:
            way_m = max(each.way_m for each in run)
            velocity, off_m = _line(run)
            if lasted_ns <= LONGEST_NS and off_m <= OFF_LINE_M + OFF_LINE_SHARE * way_m:
                speed_m_s = float(np.linalg.norm(velocity))
                moves = speed_m_s * lasted_ns / 1e9 >= LEAST_M + LEAST_SHARE * way_m
                return velocity if moves and speed_m_s <= FASTEST_M_S else np.zeros(3)
            run = run[1:]
        return np.zeros(3)


def _line(goals: list[SeenGoal]) -> tuple[Vector, float]:
    """The velocity `[3]` of the line that fits goals best, and the largest distance of a goal from it."""
    times = np.array([(goal.captured_ns - goals[-1].captured_ns) / 1e9 for goal in goals])
    positions = np.array([goal.position for goal in goals])
    times -= times.mean()
    velocity: Vector = times @ positions / (times @ times)
    off = positions - positions.mean(axis=0) - times[:, None] * velocity
    return velocity, float(np.linalg.norm(off, axis=1).max())
