"""Rigid poses and the few operations a robot needs to anchor relative actions. numpy only."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from edgeflow_client.errors import InvalidArgument

Vector = NDArray[np.float64]

MAX_DISTANCE_M = 100.0  # default limit for the distance of the tool from the origin of its base
LONGEST_M = 1e6  # the largest limit that a client may set
MAX_ANGLE = 4.0 * math.pi  # of roll, pitch and yaw: detects degrees
UNIT_TOLERANCE = 1e-3  # by which the length of a quaternion may differ from 1, and a matrix from a rotation
_ROUNDING = 1e-12  # within it a quaternion is stored as given
_SMALL_ANGLE = 1e-9  # radians; below it a rotation vector's axis is undefined


@dataclass(frozen=True, slots=True, eq=False, init=False)
class Pose:
    """A frame expressed in a parent frame.

    Made by `Pose(position, wxyz=...)`, or `Pose(position, xyzw=...)` as ROS, tf2 and SciPy order a quaternion, or by
    `from_matrix` or `from_rpy`. A quaternion is normalised. InvalidArgument for numbers that are not finite, a wrong
    shape, or a quaternion whose length is not 1 within UNIT_TOLERANCE.

    """

    position: Vector
    """`[3]`, metres."""
    wxyz: Vector
    """The rotation: a unit quaternion `[4]`, w first."""

    def __init__(
        self, position: ArrayLike, *unnamed: NoReturn, wxyz: ArrayLike | None = None, xyzw: ArrayLike | None = None
    ) -> None:
        if len(unnamed) or (wxyz is None) == (xyzw is None):
            raise InvalidArgument(
                "name the order of one quaternion: write Pose(position, wxyz=...) if w comes first, or "
                "Pose(position, xyzw=...) if w comes last, as in ROS and SciPy",
                field="pose",
            )
        _keep(
            self,
            _numbers(position, (3,), "pose.position", "x, y and z in metres; for a 4 x 4 matrix, Pose.from_matrix"),
            _unit(wxyz, "pose.wxyz") if wxyz is not None else np.roll(_unit(xyzw, "pose.xyzw"), 1),
        )

    @classmethod
    def from_matrix(cls, matrix: ArrayLike) -> Pose:
        """The pose of a homogeneous matrix `[4, 4]`: the rotation, and the position in the last column."""
        given = _numbers(matrix, (4, 4), "matrix", "a homogeneous matrix")
        turn = given[:3, :3]
        if not (_rotates(turn) and np.allclose(given[3], (0.0, 0.0, 0.0, 1.0), rtol=0.0, atol=UNIT_TOLERANCE)):
            raise InvalidArgument(
                "is not the matrix of a pose: its first three rows and columns must be a rotation and its last row "
                f"0 0 0 1, to within {UNIT_TOLERANCE:g}",
                field="matrix",
            )
        return cls(given[:3, 3], wxyz=_of_rotation(turn))

    @classmethod
    def from_rpy(cls, position: ArrayLike, rpy: ArrayLike) -> Pose:
        """The pose of a position and roll, pitch and yaw in radians: about the fixed x, then y, then z axis."""
        angles = _numbers(rpy, (3,), "rpy", "roll, pitch and yaw in radians")
        if (np.abs(angles) > MAX_ANGLE).any():
            raise InvalidArgument(
                f"is {angles.tolist()}; an angle is at most {MAX_ANGLE:.2f} radians, two turns. Convert degrees by "
                "numpy.radians",
                field="rpy",
            )
        return cls(position, wxyz=from_euler_xyz(angles))

    @property
    def xyzw(self) -> Vector:
        """The rotation as a unit quaternion `[4]`, w last, as in ROS, tf2 and SciPy."""
        return np.roll(self.wxyz, -1)

    @property
    def finite(self) -> bool:
        """True unless a value is NaN or infinite, which only composing poses can produce."""
        return bool(np.isfinite(self.position).all() and np.isfinite(self.wxyz).all())


def composed(position: Vector, wxyz: Vector) -> Pose:
    """The unchecked result of composing poses. Actions may have no limits: callers must check `finite`."""
    pose = object.__new__(Pose)
    _keep(pose, position, wxyz)
    return pose


def check_distance(max_distance_m: object) -> None:
    """Raise InvalidArgument for an invalid limit of distances."""
    if not isinstance(max_distance_m, int | float) or not 0.0 < max_distance_m <= LONGEST_M:
        raise InvalidArgument(
            f"must be above 0 and at most {LONGEST_M:g} m, got {max_distance_m!r}", field="max_distance_m"
        )


def check_pose(pose: object, max_distance_m: float) -> None:
    """Raise InvalidArgument unless this is None or a pose within max_distance_m."""
    if pose is None:
        return
    if not isinstance(pose, Pose):
        raise InvalidArgument(
            f"must be a Pose, got {type(pose).__name__}; make one by Pose(position, wxyz=...), "
            "Pose(position, xyzw=...), Pose.from_matrix or Pose.from_rpy",
            field="pose",
        )
    if not pose.finite:
        raise InvalidArgument("is not finite: it was composed of numbers that are too large", field="pose")
    far_m = math.hypot(*pose.position)
    if far_m > max_distance_m:
        raise InvalidArgument(
            f"is {far_m:g} m from the origin; max_distance_m of the client is {max_distance_m:g}. Positions are in "
            "metres: divide millimetres by 1000",
            field="pose.position",
        )


def identity() -> Pose:
    """The parent frame itself."""
    return Pose(np.zeros(3), wxyz=np.array([1.0, 0.0, 0.0, 0.0]))


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
    return composed(parent.position + rotate(parent.wxyz, child.position), multiply(parent.wxyz, child.wxyz))


def inverse(pose: Pose) -> Pose:
    """The parent frame expressed in the pose's frame."""
    return relative(pose, identity())


def relative(frame: Pose, target: Pose) -> Pose:
    """The pose `x` for which `compose(frame, x)` is `target`."""
    back = conjugate(frame.wxyz)
    return composed(rotate(back, target.position - frame.position), multiply(back, target.wxyz))


def distance(a: Pose, b: Pose) -> float:
    """Metres between two positions."""
    return float(np.linalg.norm(a.position - b.position))


def angle(a: Pose, b: Pose) -> float:
    """The smallest angle between two orientations, radians in [0, pi]."""
    return float(np.linalg.norm(to_rotvec(multiply(conjugate(a.wxyz), b.wxyz))))


def _keep(pose: Pose, position: Vector, wxyz: Vector) -> None:
    for name, values in (("position", position), ("wxyz", wxyz)):
        values.setflags(write=False)
        object.__setattr__(pose, name, values)


def _numbers(given: ArrayLike | None, shape: tuple[int, ...], field: str, what: str) -> Vector:
    """A copy as finite numbers of this shape."""
    size = " x ".join(map(str, shape))
    try:
        found = np.array(given)
    except (TypeError, ValueError, RuntimeError):  # ragged, or an array of another library on its own device
        found = np.array(None)
    if found.dtype.kind not in "fiu":
        raise InvalidArgument(f"must be {size} numbers ({what}), got {type(given).__name__}", field=field)
    if found.shape != shape:
        raise InvalidArgument(f"has shape {list(found.shape)}; it must be {size} numbers ({what})", field=field)
    with np.errstate(over="ignore"):
        numbers = found.astype(np.float64)
    if not np.isfinite(numbers).all():
        raise InvalidArgument(f"is {numbers.tolist()}; every number must be finite", field=field)
    return numbers


def _unit(given: ArrayLike | None, field: str) -> Vector:
    """A quaternion of length 1."""
    numbers = _numbers(given, (4,), field, "a unit quaternion")
    with np.errstate(over="ignore"):
        length = float(np.linalg.norm(numbers))
    if not abs(length - 1.0) <= UNIT_TOLERANCE:
        raise InvalidArgument(
            f"is {numbers.tolist()}, of length {length:g}; a rotation has length 1, to within {UNIT_TOLERANCE:g}",
            field=field,
        )
    return numbers if abs(length - 1.0) <= _ROUNDING else numbers / length


def _rotates(turn: Vector) -> bool:
    """True if a matrix `[3, 3]` is a rotation, to within UNIT_TOLERANCE."""
    if (np.abs(turn) > 1.0 + UNIT_TOLERANCE).any():
        return False
    return np.allclose(turn @ turn.T, np.eye(3), rtol=0.0, atol=UNIT_TOLERANCE) and float(np.linalg.det(turn)) > 0.0


def _of_rotation(turn: Vector) -> Vector:
    """The unit quaternion `[4]`, w first, of a rotation matrix `[3, 3]`."""
    (xx, xy, xz), (yx, yy, yz), (zx, zy, zz) = turn
    # Each row is the quaternion times four times one of its components; the longest row is the most exact.
    rows = np.array(
        [
            [1.0 + xx + yy + zz, zy - yz, xz - zx, yx - xy],
            [zy - yz, 1.0 + xx - yy - zz, xy + yx, xz + zx],
            [xz - zx, xy + yx, 1.0 - xx + yy - zz, yz + zy],
            [yx - xy, xz + zx, yz + zy, 1.0 - xx - yy + zz],
        ]
    )
    lengths = np.linalg.norm(rows, axis=1)
    longest = int(lengths.argmax())
    return np.asarray(rows[longest] / lengths[longest], dtype=np.float64)
