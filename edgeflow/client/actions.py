"""Directives for a robot, and how a relative action becomes a target pose of its tool."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from edgeflow.client.aging import OFF, Aging
from edgeflow.client.displacement import POSITION, ROTATION, displacement, look_ahead_factor
from edgeflow.client.pose import Pose, Vector, compose, multiply
from edgeflow.errors import FailedPrecondition
from edgeflow.reasons import Reason
from edgeflow.types import ActionSchema, Command, StageTimings


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The resolved target of an action.

    pose: of the tool; None if no dimension moves it relatively. values: every other dimension by name, unchanged.
    age_s: the action's age when the command takes effect. look_ahead_s: the part of it by which the displacement was
    extended, 0 = none; factor: how many times the displacement was taken for it. speed: the share of full speed to move
    at, 1 unless `Aging.slow_from_s` is set. settled, tolerance_bins, max_passes: of the action.
    """

    pose: Pose | None
    values: Mapping[str, float]
    age_s: float = 0.0
    look_ahead_s: float = 0.0
    factor: float = 1.0
    speed: float = 1.0
    settled: int = 0
    tolerance_bins: int = 0
    max_passes: int = 0


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Action:
    """An action; `values` is [K] in the schema's units.

    seq: the frame it answers. stamp_ns: capture time of that frame; received_ns, valid_until_ns: all three on the
    robot's own monotonic clock. frame_pose: pose of the tool pushed with that frame, if any. age_limit_ns: the age of
    that frame at which the action ends; None = no limit. settled: leading tokens that are settled, of len(token_ids).
    tolerance_bins, max_passes: of Mode.SPECULATIVE as served; max_passes is 0 where the frame did not draft its tokens.
    aging: how targets allow for the action's age; None = not at all.
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
    aging: Aging | None = None

    @property
    def age_ns(self) -> int:
        """Age at receipt, counted from capture."""
        return self.received_ns - self.stamp_ns

    def target(self, pose_of: Pose | Literal["frame"] = "frame", now_ns: int | None = None) -> Target:
        """Resolve the action against the pose of its frame ("frame") or against a given pose.

        now_ns: when the command is given, on the client's clock; None = at receipt. There is no look-ahead from a given
        pose: a present pose contains the motion since the frame, which would count twice. Raises FailedPrecondition if
        the action is relative and its frame was pushed without a pose.
        """
        aging = self.aging or OFF
        age_s = aging.age_s(self.stamp_ns, self.received_ns if now_ns is None else now_ns)
        factor = self._factor(aging, age_s) if pose_of == "frame" else 1.0
        target = resolve(self.schema, self.values, self.frame_pose if pose_of == "frame" else pose_of, factor)
        return replace(
            target,
            age_s=age_s,
            look_ahead_s=(factor - 1.0) / aging.rate_hz(self.schema) if factor > 1.0 else 0.0,
            factor=factor,
            speed=aging.speed(age_s),
            settled=self.settled,
            tolerance_bins=self.tolerance_bins,
            max_passes=self.max_passes,
        )

    def _factor(self, aging: Aging, age_s: float) -> float:
        """How many times the displacement is taken."""
        moves = _moves(self.schema, self.values)
        if not aging.look_ahead_s or not moves:
            return 1.0
        aging.check(self.schema)
        rate_hz = aging.rate_hz(self.schema)
        ahead_s = min(age_s, aging.look_ahead_s)
        return look_ahead_factor(moves, self.schema, ahead_s * rate_hz, aging.look_ahead_s * rate_hz)


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


def resolve(schema: ActionSchema, values: Vector, anchor: Pose | None, factor: float = 1.0) -> Target:
    """Apply relative x, y, z, roll, pitch and yaw, `factor` times, to the anchor; all other dimensions pass through.

    Frame "tool": the displacement is expressed in the anchor's frame (composed on its right). Frame "base": the
    position is added, and the rotation is about the base's axes (composed on the left).
    """
    moves = _moves(schema, values)
    others = {name: float(value) for name, value in zip(schema.names, values, strict=True) if name not in moves}
    if not moves:
        return Target(pose=None, values=others)
    if anchor is None:
        raise FailedPrecondition(
            "a relative action needs the pose of its frame: pass it to push", field="pose", reason=Reason.POSE_MISSING
        )
    moved = displacement(moves, schema, factor)
    if schema.frame == "tool":
        return Target(pose=compose(anchor, moved), values=others)
    turned = multiply(moved.quaternion, anchor.quaternion)
    return Target(pose=Pose(anchor.position + moved.position, turned), values=others)


def _moves(schema: ActionSchema, values: Vector) -> dict[str, float]:
    """The relative dimensions that move the tool."""
    return {
        name: float(value)
        for name, value, relative in zip(schema.names, values, schema.relative, strict=True)
        if relative and name in (*POSITION, *ROTATION)
    }
