"""Directives for a robot, and how a relative action becomes a target pose of its tool."""

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
    """The resolved target of an action.

    pose: of the tool; None if no dimension moves it relatively. values: every other dimension by name, unchanged.
    """

    pose: Pose | None
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Action:
    """An action; `values` is [K] in the schema's units.

    seq: the frame it answers. stamp_ns: capture time of that frame; received_ns, valid_until_ns: all three on the
    robot's own monotonic clock. frame_pose: pose of the tool pushed with that frame, if any. age_limit_ns: the age of
    that frame at which the action ends; None = no limit. settled: leading tokens that are settled, of len(token_ids).
    tolerance_bins, max_passes: of Mode.SPECULATIVE as served; max_passes is 0 where the frame did not draft its tokens.
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
    age_limit_ns: int | None = None
    settled: int = 0
    tolerance_bins: int = 0
    max_passes: int = 0

    @property
    def age_ns(self) -> int:
        """Age at receipt, counted from capture."""
        return self.received_ns - self.stamp_ns

    def target(self, pose_of: Pose | Literal["frame"] = "frame") -> Target:
        """Resolve the action against the pose of its frame ("frame") or against a given pose.

        Raises FailedPrecondition if the action is relative and its frame was pushed without a pose.
        """
        return resolve(self.schema, self.values, self.frame_pose if pose_of == "frame" else pose_of)


@dataclass(frozen=True, slots=True)
class Directive:
    """The command for the robot now.

    ACT comes with an action, HOLD and STOP with a reason. needs_reset: no action follows until `reset` is called.
    """

    command: Command
    reason: str = ""
    action: Action | None = None
    needs_reset: bool = False

    @property
    def target(self) -> Target | None:
        """The action resolved against its frame; None for HOLD and STOP. Raises like `Action.target`."""
        return self.action.target() if self.action else None


def resolve(schema: ActionSchema, values: Vector, anchor: Pose | None) -> Target:
    """Apply relative x, y, z, roll, pitch and yaw to the anchor; all other dimensions pass through.

    Frame "tool": the displacement is expressed in the anchor's frame (composed on its right). Frame "base": the
    position is added, and the rotation is about the base's axes (composed on the left).
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
