"""Labels of the flow policy: the expert's motion from a state, as a chunk of displacements; vectorised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from edgeflow.lab.demo.flow_training.data import FlowDataset
from edgeflow.lab.demo.flow_training.quaternions import TINY, conjugate, multiply, quaternions, rotate, rotvecs
from edgeflow.lab.demo.world.expert import CLOSE_ALIGNED, CLOSE_WITHIN
from edgeflow.lab.demo.world.layout import TOOL_DOWN
from edgeflow.lab.demo.world.robot import MAX_SPEED, MAX_TURN
from edgeflow_client.pose import Vector

STEP_S: Final = 0.05  # seconds per row
REOPEN_ROWS: Final = 6  # enough to open while the previous chunk is still in execution
HALF_CLOSED: Final = 0.5  # aperture at which the simulation judges a grasp


@dataclass(frozen=True, slots=True, eq=False)
class ChunkLabels:
    """Labels of N states."""

    chunks: NDArray[np.float32]
    """`[N, HANDLES, rows, 7]`."""
    goals: NDArray[np.float32]
    """`[N, HANDLES, 7]`, the whole motion in one row, with the gripper command of the first row."""
    states: NDArray[np.float32]
    """`[N, 7]`, the arm's proprioception."""


@dataclass(frozen=True, slots=True, eq=False)
class Spread:
    """Mean and standard deviation `[7]` of each dimension."""

    mean: Vector
    std: Vector

    @classmethod
    def of(cls, rows: NDArray[np.float32]) -> Spread:
        """The spread of rows `[..., 7]`."""
        flat = rows.reshape(-1, rows.shape[-1]).astype(np.float64)
        return cls(flat.mean(axis=0), flat.std(axis=0))


def label_all(data: FlowDataset, rows: int) -> ChunkLabels:
    """The labels of a data set."""
    tool = np.asarray(data.tool)
    chunks = expert_chunks(tool[:, None], data.grasps, data.aperture[:, None], rows)
    left, turn = _left(tool[:, None], data.grasps)
    goals = np.concatenate([left, turn, chunks[..., 0, 6:]], axis=-1)
    tilt = rotvecs(multiply(conjugate(TOOL_DOWN), tool[:, 3:]))
    states = np.concatenate([tool[:, :3], tilt, data.aperture[:, None]], axis=1)
    return ChunkLabels(*(each.astype(np.float32) for each in (chunks, goals, states)))


def expert_chunks(tool: Vector, grasp: Vector, aperture: NDArray[np.floating], rows: int) -> Vector:
    """The expert's next `rows` steps of 50 ms `[..., rows, 7]` from tool poses to grasp poses, both `[..., 7]`.

    A row is the displacement and rotation vector of its step, in the tool's frame at the start of the step and within
    the arm's speed limits, and the gripper, which closes when the expert closes it. A gripper that is more than half
    closed (aperture `[...]` below 0.5) has missed: it opens for REOPEN_ROWS first.
    """
    left, turn = _left(tool, grasp)
    far, angle = (np.linalg.norm(each, axis=-1)[..., None] for each in (left, turn))
    instants = STEP_S * np.arange(rows + 1)
    moved = np.minimum(1.0, MAX_SPEED * instants / np.maximum(far, TINY))
    turned = np.minimum(1.0, MAX_TURN * instants / np.maximum(angle, TINY))
    shift = np.diff(moved)[..., None] * left[..., None, :]
    back = conjugate(quaternions(turned[..., :-1, None] * turn[..., None, :]))
    rotvec = np.diff(turned)[..., None] * turn[..., None, :]
    closed = (far * (1.0 - moved) <= CLOSE_WITHIN) & (angle * (1.0 - turned) <= CLOSE_ALIGNED)
    reopens = (np.asarray(aperture)[..., None] < HALF_CLOSED) & (np.arange(rows) < REOPEN_ROWS)
    gripper = np.where(closed[..., :-1] & ~reopens, 0.0, 1.0)[..., None]
    return np.concatenate([rotate(back, shift), rotvec, gripper], axis=-1)


def displaced(tool: Vector, metres: Vector, radians: Vector) -> Vector:
    """Poses `[N, 7]`, each moved and turned in its own frame by `[N, 3]` and `[N, 3]`."""
    position = tool[:, :3] + rotate(tool[:, 3:], metres)
    return np.concatenate([position, multiply(tool[:, 3:], quaternions(radians))], axis=1)


def _left(tool: Vector, grasp: Vector) -> tuple[Vector, Vector]:
    """The remaining displacement and rotation vector `[..., 3]` from tool to grasp poses, in the tools' frames."""
    back = conjugate(tool[..., 3:])
    return rotate(back, grasp[..., :3] - tool[..., :3]), rotvecs(multiply(back, grasp[..., 3:]))
