"""Rotations of many poses at once, as unit quaternions `[..., 4]` (w, x, y, z)."""

from __future__ import annotations

from typing import Final

import numpy as np

from edgeflow_client.pose import Vector

TINY: Final = 1e-12


def conjugate(q: Vector) -> Vector:
    """The inverse rotation of a unit quaternion."""
    return np.asarray(q * np.array([1.0, -1.0, -1.0, -1.0]))


def multiply(a: Vector, b: Vector) -> Vector:
    """The rotation b, then a."""
    aw, av, bw, bv = a[..., :1], a[..., 1:], b[..., :1], b[..., 1:]
    w = aw * bw - (av * bv).sum(axis=-1, keepdims=True)
    return np.concatenate([w, aw * bv + bw * av + np.cross(av, bv)], axis=-1)


def rotate(q: Vector, v: Vector) -> Vector:
    """Vectors `[..., 3]`, rotated."""
    twice = 2.0 * np.cross(q[..., 1:], v)
    return v + q[..., :1] * twice + np.cross(q[..., 1:], twice)


def rotvecs(q: Vector) -> Vector:
    """Rotation vectors `[..., 3]` of at most half a turn, radians."""
    q = np.where(q[..., :1] < 0.0, -q, q)
    sine = np.linalg.norm(q[..., 1:], axis=-1, keepdims=True)
    return np.asarray(q[..., 1:] * (2.0 * np.arctan2(sine, q[..., :1]) / np.maximum(sine, TINY)))


def quaternions(rotvec: Vector) -> Vector:
    """Unit quaternions of rotation vectors `[..., 3]`, radians."""
    angle = np.linalg.norm(rotvec, axis=-1, keepdims=True)
    return np.concatenate([np.cos(angle / 2.0), np.sin(angle / 2.0) * rotvec / np.maximum(angle, TINY)], axis=-1)
