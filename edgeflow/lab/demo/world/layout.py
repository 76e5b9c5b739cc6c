"""Positions and motion of the handles of an episode: pure functions of a seed and the time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from edgeflow_client.pose import Pose, Vector, from_rotvec, multiply, rotate

COLOURS: Final = {
    "red": (0.85, 0.08, 0.08),
    "green": (0.10, 0.62, 0.14),
    "blue": (0.10, 0.28, 0.90),
    "orange": (0.98, 0.55, 0.05),
    "purple": (0.55, 0.12, 0.75),
}
HANDLES: Final = 3
CELL_CENTRES_Y: Final = (0.13, 0.0, -0.13)  # metres; +y is to the robot's left
CELL_HALF: Final = (0.055, 0.032)  # metres along x and y; a handle stays in its cell, so the order never changes
CELL_X: Final = 0.46
HEIGHTS: Final = (0.03, 0.12)  # metres above the table
MAX_YAW: Final = 0.61  # radians, 35 degrees
TILTS: Final = (0.12, 0.245)  # radians about x and about y, in either direction: 7 to 14 degrees, at most 20 together
GRASP_HEIGHT: Final = 0.02  # metres from the plate along the pin to where the tool closes
TOOL_DOWN: Final = np.array([0.0, np.sqrt(0.5), -np.sqrt(0.5), 0.0])  # tool z down, tool x to the robot's right


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Handle:
    """A coloured plate with a white pin."""

    colour: str
    origin: Vector
    """`[3]`, metres, at time 0."""
    quaternion: Vector
    """Orientation of the plate, z along the pin, x along its long side."""
    velocity: Vector
    """`[2]`, m/s. cell: (low, high), `[2]` each."""
    low: Vector
    high: Vector

    def pose(self, time: float) -> Pose:
        """Pose of the plate's centre; the handle bounces between the walls of its cell."""
        planar, _ = self._motion(time)
        return Pose(np.array([planar[0], planar[1], self.origin[2]]), wxyz=self.quaternion)

    def jumped(self, time: float, metres: float) -> Handle:
        """The handle after it jumped along x at a time, away from the nearer wall; it then moves on as before.

        metres: at most half of its cell.
        """
        planar, velocity = self._motion(time)
        near_low = planar[0] - self.low[0] < self.high[0] - planar[0]
        begun = planar + np.array([metres if near_low else -metres, 0.0]) - velocity * time
        return replace(self, origin=np.array([*begun, self.origin[2]]), velocity=velocity)

    def _motion(self, time: float) -> tuple[Vector, Vector]:
        """Position and velocity along x and y, bounces included, `[2]` each."""
        span = self.high - self.low
        travelled = np.mod(self.origin[:2] + self.velocity * time - self.low, 2.0 * span)
        back = travelled > span
        planar = self.low + np.where(back, 2.0 * span - travelled, travelled)
        return planar, np.where(back, -self.velocity, self.velocity)

    def grasp(self, time: float) -> Pose:
        """The tool pose in which the gripper closes on the pin."""
        plate = self.pose(time)
        pin = rotate(plate.wxyz, np.array([0.0, 0.0, GRASP_HEIGHT]))
        return Pose(plate.position + pin, wxyz=multiply(plate.wxyz, TOOL_DOWN))


def sample_layout(rng: np.random.Generator, speed: float) -> tuple[Handle, ...]:
    """HANDLES handles of distinct random colours, leftmost first, each moving at `speed` m/s in its cell."""
    colours = rng.permutation(list(COLOURS))[:HANDLES]
    return tuple(_sample_handle(rng, str(colour), y, speed) for colour, y in zip(colours, CELL_CENTRES_Y, strict=True))


def _sample_handle(rng: np.random.Generator, colour: str, cell_y: float, speed: float) -> Handle:
    centre, half = np.array([CELL_X, cell_y]), np.array(CELL_HALF)
    planar = centre + half * rng.uniform(-1.0, 1.0, 2)
    heading = rng.uniform(0.0, 2.0 * np.pi)
    tilt = rng.choice([-1.0, 1.0], 2) * rng.uniform(*TILTS, 2)
    yaw = rng.uniform(-MAX_YAW, MAX_YAW)
    quaternion = multiply(
        from_rotvec(np.array([*tilt, 0.0])),
        from_rotvec(np.array([0.0, 0.0, yaw])),
    )
    return Handle(
        colour=colour,
        origin=np.array([planar[0], planar[1], rng.uniform(*HEIGHTS)]),
        quaternion=quaternion,
        velocity=speed * np.array([np.cos(heading), np.sin(heading)]),
        low=centre - half,
        high=centre + half,
    )
