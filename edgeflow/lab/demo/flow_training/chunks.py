"""Labels of the flow policy: the expert's motion from a state, as a chunk of displacements; vectorised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from edgeflow.lab.demo.flow_training.data import FlowDataset
from edgeflow.lab.demo.world.expert import CLOSE_ALIGNED, CLOSE_WITHIN
from edgeflow.lab.demo.world.layout import TOOL_DOWN
from edgeflow.lab.demo.world.robot import GRIPPER_TIME, MAX_SPEED, MAX_TURN
from edgeflow_client.pose import Vector

STEP_S: Final = 0.05  # seconds per row
REOPEN_ROWS: Final = 6  # enough to open while the previous chunk is still in execution
HALF_CLOSED: Final = 0.5  # aperture at which the simulation judges a grasp
_TINY: Final = 1e-12


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
    tilt = _rotvecs(_multiply(_conjugate(TOOL_DOWN), tool[:, 3:]))
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
    moved = np.minimum(1.0, MAX_SPEED * instants / np.maximum(far, _TINY))
    turned = np.minimum(1.0, MAX_TURN * instants / np.maximum(angle, _TINY))
    shift = np.diff(moved)[..., None] * left[..., None, :]
    back = _conjugate(_quaternions(turned[..., :-1, None] * turn[..., None, :]))
    rotvec = np.diff(turned)[..., None] * turn[..., None, :]
    closed = (far * (1.0 - moved) <= CLOSE_WITHIN) & (angle * (1.0 - turned) <= CLOSE_ALIGNED)
    reopens = (np.asarray(aperture)[..., None] < HALF_CLOSED) & (np.arange(rows) < REOPEN_ROWS)
    gripper = np.where(closed[..., :-1] & ~reopens, 0.0, 1.0)[..., None]
    return np.concatenate([_rotate(back, shift), rotvec, gripper], axis=-1)


def continued_chunks(
    tool: Vector, grasp: Vector, aperture: NDArray[np.floating], given: Vector, count: NDArray[np.int64]
) -> Vector:
    """Chunks `[N, rows, 7]` that start with the first `count` `[N]` rows of `given` `[N, rows, 7]`.

    The rest is the expert's motion from where those rows lead: tool poses `[N, 7]` and apertures `[N]` now, grasp
    poses `[N, 7]`.
    """
    rows, position, quaternion = given.shape[1], tool[:, :3], tool[:, 3:]
    aperture = np.asarray(aperture, np.float64)
    for row in range(int(count.max(initial=0))):
        moved, step = (row < count)[:, None], given[:, row]
        position = np.where(moved, position + _rotate(quaternion, step[:, :3]), position)
        quaternion = np.where(moved, _multiply(quaternion, _quaternions(step[:, 3:6])), quaternion)
        change = np.where(step[:, 6] < HALF_CLOSED, -1.0, 1.0) * STEP_S / GRIPPER_TIME
        aperture = np.where(moved[:, 0], np.clip(aperture + change, 0.0, 1.0), aperture)
    rest = expert_chunks(np.concatenate([position, quaternion], axis=1), grasp, aperture, rows)
    places = np.arange(rows)[None]
    later = np.take_along_axis(rest, np.maximum(places - count[:, None], 0)[..., None], axis=1)
    return np.where((places < count[:, None])[..., None], given, later)


def displaced(tool: Vector, metres: Vector, radians: Vector) -> Vector:
    """Poses `[N, 7]`, each moved and turned in its own frame by `[N, 3]` and `[N, 3]`."""
    position = tool[:, :3] + _rotate(tool[:, 3:], metres)
    return np.concatenate([position, _multiply(tool[:, 3:], _quaternions(radians))], axis=1)


def _left(tool: Vector, grasp: Vector) -> tuple[Vector, Vector]:
    """The remaining displacement and rotation vector `[..., 3]` from tool to grasp poses, in the tools' frames."""
    back = _conjugate(tool[..., 3:])
    return _rotate(back, grasp[..., :3] - tool[..., :3]), _rotvecs(_multiply(back, grasp[..., 3:]))


def _conjugate(q: Vector) -> Vector:
    return np.asarray(q * np.array([1.0, -1.0, -1.0, -1.0]))


def _multiply(a: Vector, b: Vector) -> Vector:
    aw, av, bw, bv = a[..., :1], a[..., 1:], b[..., :1], b[..., 1:]
    w = aw * bw - (av * bv).sum(axis=-1, keepdims=True)
    return np.concatenate([w, aw * bv + bw * av + np.cross(av, bv)], axis=-1)


def _rotate(q: Vector, v: Vector) -> Vector:
    twice = 2.0 * np.cross(q[..., 1:], v)
    return v + q[..., :1] * twice + np.cross(q[..., 1:], twice)


def _rotvecs(q: Vector) -> Vector:
    q = np.where(q[..., :1] < 0.0, -q, q)
    sine = np.linalg.norm(q[..., 1:], axis=-1, keepdims=True)
    return np.asarray(q[..., 1:] * (2.0 * np.arctan2(sine, q[..., :1]) / np.maximum(sine, _TINY)))


def _quaternions(rotvec: Vector) -> Vector:
    angle = np.linalg.norm(rotvec, axis=-1, keepdims=True)
    return np.concatenate([np.cos(angle / 2.0), np.sin(angle / 2.0) * rotvec / np.maximum(angle, _TINY)], axis=-1)


MOST_DELAY: Final = 6  # rows to keep
FRESH_SHARE: Final = 0.15  # share of the chunks that keep none
_METRES: Final = (0.001, 0.02)  # spread of the goal of the previous chunk, log-uniform
_RADIANS: Final = (0.01, 0.12)


def draw_continued(
    tool: Vector, grasp: Vector, aperture: NDArray[np.floating], rows: int, rng: np.random.Generator
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Chunks `[N, rows, 7]` from tool to grasp poses `[N, 7]`, and the number of first rows that each must keep `[N]`.

    Training for real-time chunking (arXiv 2512.05964): an answer starts with rows of the chunk in execution, which it
    must keep. Here they are the expert's motion to a goal nearby, since an older frame shows the goal with an error;
    the rows after them correct for it.

    aperture: `[N]`.
    """
    size = len(tool)
    scale = rng.uniform(size=(size, 1))
    metres, radians = (
        low * (high / low) ** scale * rng.standard_normal((size, 3)) for low, high in (_METRES, _RADIANS)
    )
    before = expert_chunks(tool, displaced(grasp, metres, radians), aperture, rows)
    count = np.where(rng.uniform(size=size) < FRESH_SHARE, 0, rng.integers(1, MOST_DELAY + 1, size=size))
    return continued_chunks(tool, grasp, aperture, before, count).astype(np.float32), count
