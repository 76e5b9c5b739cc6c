"""Rigid poses and the few operations a robot needs to anchor relative actions. numpy only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]

_SMALL_ANGLE = 1e-9  # radians; below it a rotation vector's axis is undefined


@dataclass(frozen=True, slots=True, eq=False)
class Pose:
    """A frame expressed in a parent frame.

    position: `[3]`, metres. quaternion: `[4]`, unit, (w, x, y, z).
    """

    position: Vector
    quaternion: Vector


def identity() -> Pose:
    """The parent frame itself."""
    return Pose(np.zeros(3), np.array([1.0, 0.0, 0.0, 0.0]))


def from_rotvec(rotvec: Vector) -> Vector:
    """Quaternion `[4]` of a rotation vector `[3]` (axis times angle, radians)."""
    turn = float(np.linalg.norm(rotvec))
    if turn < _SMALL_ANGLE:
        return np.array([1.0, 0.0, 0.0, 0.0])
    axis = np.asarray(rotvec, dtype=np.float64) / turn
    return np.concatenate([[np.cos(turn / 2.0)], np.sin(turn / 2.0) * axis])


def from_euler_xyz(angles: Vector) -> Vector:
    """Quaternion `[4]` of roll, pitch and yaw `[3]`, radians: rotations about the fixed x, then y, then z axis."""
    roll, pitch, yaw = np.eye(3) * np.asarray(angles, dtype=np.float64)
    return multiply(from_rotvec(yaw), multiply(from_rotvec(pitch), from_rotvec(roll)))


def to_rotvec(quaternion: Vector) -> Vector:
    """Rotation vector `[3]` of a unit quaternion; the angle is in [0, pi]."""
    w, xyz = float(quaternion[0]), np.asarray(quaternion[1:], dtype=np.float64)
    if w < 0.0:
        w, xyz = -w, -xyz
    sine = float(np.linalg.norm(xyz))
    if sine < _SMALL_ANGLE:
        return 2.0 * xyz
    return np.asarray(xyz * (2.0 * np.arctan2(sine, w) / sine), dtype=np.float64)


def to_euler_xyz(quaternion: Vector) -> Vector:
    """Roll, pitch and yaw `[..., 3]` of unit quaternions `[..., 4]`, as `from_euler_xyz` takes them."""
    w, x, y, z = np.moveaxis(np.asarray(quaternion, dtype=np.float64), -1, 0)
    roll = np.arctan2(2.0 * (w * x + y * z), 1.0 - 2.0 * (x * x + y * y))
    pitch = np.arcsin(np.clip(2.0 * (w * y - z * x), -1.0, 1.0))
    yaw = np.arctan2(2.0 * (w * z + x * y), 1.0 - 2.0 * (y * y + z * z))
    return np.stack([roll, pitch, yaw], axis=-1)


def multiply(a: Vector, b: Vector) -> Vector:
    """Hamilton product: the rotation b followed by a, both in a's parent frame."""
    aw, ax, ay, az = (float(v) for v in a)
    bw, bx, by, bz = (float(v) for v in b)
    product = np.array(
        [
            aw * bw - ax * bx - ay * by - az * bz,
            aw * bx + ax * bw + ay * bz - az * by,
            aw * by - ax * bz + ay * bw + az * bx,
            aw * bz + ax * by - ay * bx + az * bw,
        ]
    )
    return np.asarray(product / np.linalg.norm(product), dtype=np.float64)


def conjugate(quaternion: Vector) -> Vector:
    """The inverse rotation of a unit quaternion."""
    return np.asarray(quaternion * np.array([1.0, -1.0, -1.0, -1.0]), dtype=np.float64)


def rotate(quaternion: Vector, vector: Vector) -> Vector:
    """`vector [3]` rotated by a unit quaternion."""
    w, xyz = float(quaternion[0]), np.asarray(quaternion[1:], dtype=np.float64)
    twice = 2.0 * np.cross(xyz, vector)
    return np.asarray(vector + w * twice + np.cross(xyz, twice), dtype=np.float64)


def compose(parent: Pose, child: Pose) -> Pose:
    """The pose of a child, given in the parent's frame, expressed in the frame the parent is expressed in."""
    return Pose(
        parent.position + rotate(parent.quaternion, child.position),
        multiply(parent.quaternion, child.quaternion),
    )


def inverse(pose: Pose) -> Pose:
    """The parent frame expressed in the pose's frame."""
    return relative(pose, identity())


def relative(frame: Pose, target: Pose) -> Pose:
    """The pose `x` for which `compose(frame, x)` is `target`."""
    back = conjugate(frame.quaternion)
    return Pose(rotate(back, target.position - frame.position), multiply(back, target.quaternion))


def distance(a: Pose, b: Pose) -> float:
    """Metres between two positions."""
    return float(np.linalg.norm(a.position - b.position))


def angle(a: Pose, b: Pose) -> float:
    """The smallest angle between two orientations, radians in [0, pi]."""
    return float(np.linalg.norm(to_rotvec(multiply(conjugate(a.quaternion), b.quaternion))))
