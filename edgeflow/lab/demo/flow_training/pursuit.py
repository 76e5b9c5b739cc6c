"""The expert that knows where a moving handle will be: its chunks, from the arm's pose and the handle's motion."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from edgeflow.lab.demo.flow_training.quaternions import TINY, conjugate, multiply, quaternions, rotate, rotvecs
from edgeflow.lab.demo.world.expert import CLOSE_ALIGNED, CLOSE_WITHIN
from edgeflow.lab.demo.world.layout import CELL_CENTRES_Y, CELL_HALF, CELL_X
from edgeflow.lab.demo.world.robot import GRIPPER_TIME, MAX_SPEED, MAX_TURN
from edgeflow_client.pose import Vector

STEP_S: Final = 0.05  # seconds per row
REOPEN_ROWS: Final = 6  # enough to open while the previous chunk is still in execution
HALF_CLOSED: Final = 0.5  # aperture at which the simulation judges a grasp


@dataclass(frozen=True, slots=True, eq=False)
class Tracks:
    """The motions of N handles, each at a constant speed between the walls of its cell."""

    grasp: Vector
    """`[N, 7]`, the poses at time 0 in which the gripper closes."""
    origin: Vector
    """`[N, 2]`, the plates' planar positions at time 0."""
    velocity: Vector
    """`[N, 2]`, m/s at time 0."""
    low: Vector
    """`[N, 2]`, the walls, as `high`."""
    high: Vector

    @classmethod
    def of(cls, grasp: Vector, origin: Vector, velocity: Vector, cells: NDArray[np.int64]) -> Tracks:
        """The tracks of handles in cells `[N]`, counted from the left."""
        centres = np.stack([np.full(len(cells), CELL_X), np.array(CELL_CENTRES_Y)[cells]], axis=1)
        half = np.array(CELL_HALF)
        return cls(grasp, origin, velocity, centres - half, centres + half)

    def grasps(self, times: Vector) -> Vector:
        """The positions `[N, T, 3]` at times `[N, T]` in which the gripper closes."""
        planar = self._folded(times)[0] - self.origin[:, None]
        moved = np.concatenate([planar, np.zeros_like(planar[..., :1])], axis=-1)
        return np.asarray(self.grasp[:, None, :3] + moved)

    def velocities(self, times: Vector) -> Vector:
        """The planar velocities `[N, 2]` at times `[N]`."""
        return np.asarray(self._folded(times[:, None])[1][:, 0])

    def from_time(self, times: Vector) -> Tracks:
        """The same motions, with times `[N]` as their time 0."""
        position, velocity = (each[:, 0] for each in self._folded(times[:, None]))
        grasp = np.concatenate([self.grasps(times[:, None])[:, 0], self.grasp[:, 3:]], axis=1)
        return replace(self, grasp=grasp, origin=position, velocity=velocity)

    def _folded(self, times: Vector) -> tuple[Vector, Vector]:
        """Planar positions and velocities `[N, T, 2]` at times `[N, T]`."""
        low, velocity = self.low[:, None], self.velocity[:, None]
        span = (self.high - self.low)[:, None]
        travelled = np.mod(self.origin[:, None] + velocity * times[..., None] - low, 2.0 * span)
        back = travelled > span
        return low + np.where(back, 2.0 * span - travelled, travelled), np.where(back, -velocity, velocity)


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """N planned motions of `rows` steps of 50 ms."""

    positions: Vector
    """`[N, rows + 1, 3]`, of the tool at the ends of the steps, from the beginning on."""
    turns: Vector
    """`[N, rows + 1, 4]`, its orientations."""
    gripper: Vector
    """`[N, rows]`, 1 open, 0 closed."""
    apertures: Vector
    """`[N, rows + 1]`."""

    def chunks(self) -> Vector:
        """`[N, rows, 7]`: displacement and rotation vector of each step in the tool's frame at its start; gripper."""
        back = conjugate(self.turns[:, :-1])
        shift = rotate(back, np.diff(self.positions, axis=1))
        return np.concatenate([shift, rotvecs(multiply(back, self.turns[:, 1:])), self.gripper[..., None]], axis=-1)

    def then(self, later: Plan, count: NDArray[np.int64]) -> Plan:
        """The first `count` `[N]` rows of this plan, then those of a later one that began there."""
        begun = np.arange(self.positions.shape[1])[None] > count[:, None]
        rows = np.arange(self.gripper.shape[1])[None] >= count[:, None]
        return Plan(
            np.where(begun[..., None], later.positions, self.positions),
            np.where(begun[..., None], later.turns, self.turns),
            np.where(rows, later.gripper, self.gripper),
            np.where(begun, later.apertures, self.apertures),
        )


def pursue(
    tool: Vector, aperture: NDArray[np.floating], goals: Vector, turn: Vector, begins: NDArray[np.int64]
) -> Plan:
    """The expert's motion from tool poses `[N, 7]` and apertures `[N]`, which last until row `begins` `[N]`.

    It heads for where the handle is at the end of each row, within the arm's limits, and closes once it is near where
    the handle is then, which it goes on to follow. A gripper that is more than half closed has missed: it opens for
    REOPEN_ROWS first. goals: `[N, rows + 1, 3]`, positions at the starts of rows, and at the end; turn: `[N, 4]`.
    """
    rows = goals.shape[1] - 1
    since = np.maximum(np.arange(rows + 1)[None] - begins[:, None], 0)
    left = rotvecs(multiply(conjugate(tool[:, 3:]), turn))
    angle = np.linalg.norm(left, axis=1)[:, None]
    share = np.minimum(1.0, MAX_TURN * STEP_S * since / np.maximum(angle, TINY))
    turns = multiply(
        np.broadcast_to(tool[:, None, 3:], (*share.shape, 4)), quaternions(share[..., None] * left[:, None])
    )
    aligned, missed = angle * (1.0 - share) <= CLOSE_ALIGNED, aperture < HALF_CLOSED
    positions, apertures = np.empty((*share.shape, 3)), np.empty(share.shape)
    gripper, closing = np.ones((len(tool), rows)), np.zeros(len(tool), bool)
    positions[:, 0], apertures[:, 0] = tool[:, :3], aperture
    for row in range(rows):
        begun = row >= begins
        away = goals[:, row] - positions[:, row]
        near = (away * away).sum(axis=1) <= CLOSE_WITHIN**2
        reopens = missed & (since[:, row] < REOPEN_ROWS)
        closing |= begun & near & aligned[:, row] & ~reopens
        gripper[closing, row] = 0.0
        move = goals[:, row + 1] - positions[:, row]
        far = np.sqrt((move * move).sum(axis=1))
        move *= (begun * np.minimum(1.0, MAX_SPEED * STEP_S / np.maximum(far, TINY)))[:, None]
        positions[:, row + 1] = positions[:, row] + move
        change = np.where(closing, -1.0, 1.0) * begun * (STEP_S / GRIPPER_TIME)
        apertures[:, row + 1] = np.clip(apertures[:, row] + change, 0.0, 1.0)
    return Plan(positions, turns, gripper, apertures)
