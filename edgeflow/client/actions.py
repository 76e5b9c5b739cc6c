"""What a robot is told to do, and how a relative action becomes a target for its tool."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from edgeflow.client.pose import Pose, Vector, compose, from_euler_xyz, from_rotvec, multiply
from edgeflow.errors import FailedPrecondition
from edgeflow.reasons import Reason
from edgeflow.types import ActionSchema, Command, StageTimings

POSITION = ("x", "y", "z")
ROTATION = ("roll", "pitch", "yaw")


@dataclass(frozen=True, slots=True)
class Target:
    """Where an action wants the tool, and the dimensions that are not part of the tool's pose.

    pose: None when no dimension moves the tool relatively. values: every other dimension by name, as it came.
    """

    pose: Pose | None
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Action:
    """One action; values `[K]` in the schema's units.

    seq: the frame it answers. stamp_ns: that frame's capture. received_ns, valid_until_ns: all three on the
    robot's own monotonic clock. frame_pose: the tool's pose given with that frame, if one was.
    """

    seq: int
    epoch: int
    values: Vector
    token_ids: tuple[int, ...]
    schema: ActionSchema
    stamp_ns: int
    received_ns: int
    valid_until_ns: int
    frame_pose: Pose | None
    timings: StageTimings
    server_ns: int

    @property
    def age_ns(self) -> int:
        """From capture to receipt."""
        return self.received_ns - self.stamp_ns

    def target(self, pose_of: Pose | Literal["frame"] = "frame") -> Target:
        """The action resolved: "frame" anchors it to the pose of the frame it answers, a pose to that pose.

        Raises FailedPrecondition when the frame was pushed without a pose and the action is relative.
        """
        return resolve(self.schema, self.values, self.frame_pose if pose_of == "frame" else pose_of)


@dataclass(frozen=True, slots=True)
class Directive:
    """What to do now.

    ACT comes with an action, HOLD and STOP with a reason. needs_reset: no action is given out until `reset`.
    """

    command: Command
    reason: str = ""
    action: Action | None = None
    needs_reset: bool = False

    @property
    def target(self) -> Target | None:
        """The action anchored to its frame; None for HOLD and STOP. Raises as `Action.target`."""
        return self.action.target() if self.action else None


def resolve(schema: ActionSchema, values: Vector, anchor: Pose | None) -> Target:
    """Relative x, y, z, roll, pitch, yaw move the anchor; all other dimensions pass through.

    Frame "tool": the displacement is seen from the anchor (composed on its right). Frame "base": the position
    is added, the rotation turns about the base's axes (composed on the left).
    """
    moves = {
        name: float(value)
        for name, value, relative in zip(schema.names, values, schema.relative, strict=True)
        if relative and name in (*POSITION, *ROTATION)
    }
    others = {name: float(value) for name, value in zip(schema.names, values, strict=True) if name not in moves}
    if not moves:
        return Target(None, others)
    if anchor is None:
        raise FailedPrecondition(
            "a relative action needs the pose of its frame: pass it to push", field="pose", reason=Reason.POSE_MISSING
        )
    return Target(_moved(anchor, moves, schema), others)


def _moved(anchor: Pose, moves: Mapping[str, float], schema: ActionSchema) -> Pose:
    shift = np.array([moves.get(name, 0.0) for name in POSITION])
    angles = np.array([moves.get(name, 0.0) for name in ROTATION])
    turn = from_rotvec(angles) if schema.rotation == "rotvec" else from_euler_xyz(angles)
    if schema.frame == "tool":
        return compose(anchor, Pose(shift, turn))
    return Pose(anchor.position + shift, multiply(turn, anchor.quaternion))
