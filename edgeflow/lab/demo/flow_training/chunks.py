"""Labels of single frames: the expert's motion to a still handle, as a chunk of displacements; vectorised."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeflow.lab.demo.flow_training.data import FlowDataset
from edgeflow.lab.demo.flow_training.pursuit import pursue
from edgeflow.lab.demo.flow_training.quaternions import conjugate, multiply, quaternions, rotate, rotvecs
from edgeflow.lab.demo.world.layout import TOOL_DOWN
from edgeflow_client.pose import Vector


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
    """The expert's next `rows` steps of 50 ms `[..., rows, 7]` (Plan.chunks) from tool poses to still grasp poses, both
    `[..., 7]`; apertures `[...]`.
    """
    shape = np.broadcast_shapes(tool.shape[:-1], grasp.shape[:-1], np.shape(aperture))
    tools, grasps = (np.broadcast_to(each, (*shape, 7)).reshape(-1, 7) for each in (tool, grasp))
    goals = np.broadcast_to(grasps[:, None, :3], (len(grasps), rows + 1, 3))
    apertures = np.broadcast_to(aperture, shape).reshape(-1)
    plan = pursue(tools, apertures, goals, grasps[:, 3:], np.zeros(len(tools), np.int64))
    return plan.chunks().reshape(*shape, rows, 7)


def displaced(tool: Vector, metres: Vector, radians: Vector) -> Vector:
    """Poses `[N, 7]`, each moved and turned in its own frame by `[N, 3]` and `[N, 3]`."""
    position = tool[:, :3] + rotate(tool[:, 3:], metres)
    return np.concatenate([position, multiply(tool[:, 3:], quaternions(radians))], axis=1)


def _left(tool: Vector, grasp: Vector) -> tuple[Vector, Vector]:
    """The remaining displacement and rotation vector `[..., 3]` from tool to grasp poses, in the tools' frames."""
    back = conjugate(tool[..., 3:])
    return rotate(back, grasp[..., :3] - tool[..., :3]), rotvecs(multiply(back, grasp[..., 3:]))
