"""Relative actions as displacements: their poses, and how far they may be scaled within the schema's limits."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from edgeflow_client.pose import Pose, Vector, composed, from_euler_xyz, from_rotvec, to_euler_xyz, to_rotvec
from edgeflow_client.types import ActionSchema

POSITION = ("x", "y", "z")
ROTATION = ("roll", "pitch", "yaw")
MAX_TURN = 2.0 * math.pi  # radians, of one displacement about an axis
LARGEST = 1e300  # of any number of an action, so that blending cannot overflow
_FACTORS = 129  # at which the Euler angles of a scaled rotation are compared with their limits
_SLACK = 1e-9  # radians, for rounding


def moves_tool(schema: ActionSchema) -> bool:
    """True if a dimension of the schema moves the tool relatively."""
    dimensions = zip(schema.names, schema.relative, strict=True)
    return any(relative and name in (*POSITION, *ROTATION) for name, relative in dimensions)


def within_reach(rows: Vector, schema: ActionSchema, max_distance_m: float) -> bool:
    """True if no displacement of the tool in rows [..., dims] is beyond max_distance_m or MAX_TURN, and nothing else
    beyond LARGEST: so targets are finite where the schema states no limits, too.
    """
    most = [_most(name, relative, max_distance_m) for name, relative in zip(schema.names, schema.relative, strict=True)]
    return bool((np.abs(rows) <= np.array(most)).all())


def displacement(moves: Mapping[str, float], schema: ActionSchema, factor: float = 1.0) -> Pose:
    """The displacement of relative dimensions, `factor` times: the position and the angle of the rotation are scaled.

    Euler angles are scaled as the rotation that they describe, since multiples of each differ from it.
    """
    shift, angles = _vector(moves, POSITION), _vector(moves, ROTATION)
    if factor == 1.0:
        return composed(shift, from_rotvec(angles) if schema.rotation == "rotvec" else from_euler_xyz(angles))
    return composed(factor * shift, from_rotvec(factor * _rotvec(angles, schema)))


def look_ahead_factor(moves: Mapping[str, float], schema: ActionSchema, steps: float, most_steps: float) -> float:
    """1 + steps for an action that is `steps` control steps old, at most 1 + most_steps, or less if limits are reached.

    All dimensions have the same factor, so that the direction stays. It is never below 1 and never falls with age.
    """
    most = 1.0 + most_steps
    most = min([most, *(_room(moves[name], *_limits(schema, name)) for name in _linear(moves, schema))])
    turn = _rotvec(_vector(moves, ROTATION), schema)
    angle = float(np.linalg.norm(turn))
    if angle > 0.0:
        most = min(most, math.pi / angle)  # beyond half a turn the arm would turn the other way
    if angle > 0.0 and schema.rotation == "euler_xyz" and most > 1.0:
        most = _most_euler(moves, schema, turn, most)
    return max(1.0, min(1.0 + steps, most))


def _most(name: str, relative: bool, max_distance_m: float) -> float:
    if not relative or name not in (*POSITION, *ROTATION):
        return LARGEST
    return max_distance_m if name in POSITION else MAX_TURN


def _vector(moves: Mapping[str, float], names: tuple[str, ...]) -> Vector:
    return np.array([moves.get(name, 0.0) for name in names])


def _rotvec(angles: Vector, schema: ActionSchema) -> Vector:
    return angles if schema.rotation == "rotvec" else to_rotvec(from_euler_xyz(angles))


def _linear(moves: Mapping[str, float], schema: ActionSchema) -> list[str]:
    """The dimensions whose value is proportional to the factor."""
    return [name for name in moves if name in POSITION or schema.rotation == "rotvec"]


def _limits(schema: ActionSchema, name: str) -> tuple[float, float]:
    index = schema.names.index(name)
    return schema.low[index], schema.high[index]


def _room(value: float, low: float, high: float) -> float:
    """The largest factor of a value within its limits; only the limit on its own side of 0 can be reached."""
    if value == 0.0:
        return math.inf
    return (high if value > 0.0 else low) / value


def _most_euler(moves: Mapping[str, float], schema: ActionSchema, turn: Vector, most: float) -> float:
    """The largest of _FACTORS factors from 1 to `most` before the Euler angles of the scaled rotation pass a limit."""
    limits = [_limits(schema, name) if name in moves else (-math.inf, math.inf) for name in ROTATION]
    low, high = np.array(limits).T
    factors = np.linspace(1.0, most, _FACTORS)
    angles = to_euler_xyz(_turns(turn, factors))
    outside = ((angles < low - _SLACK) | (angles > high + _SLACK)).any(axis=1)
    return float(factors[max(int(outside.argmax()) - 1, 0)]) if outside.any() else most


def _turns(rotvec: Vector, factors: Vector) -> Vector:
    """Quaternions `[n, 4]` of multiples of a rotation vector `[3]`."""
    angle = np.linalg.norm(rotvec)
    half = factors[:, None] * angle / 2.0
    return np.concatenate([np.cos(half), np.sin(half) * rotvec / angle], axis=1)
