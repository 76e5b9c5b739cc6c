"""Directives for a robot, how a relative action becomes a target pose of its tool, and advice on how to read them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from edgeflow_client.aging import OFF, Aging
from edgeflow_client.displacement import POSITION, ROTATION, displacement, look_ahead_factor
from edgeflow_client.errors import FailedPrecondition
from edgeflow_client.following import STEP_NS
from edgeflow_client.pose import Pose, Vector, compose, composed, multiply
from edgeflow_client.reasons import Reason
from edgeflow_client.timeline import Timeline
from edgeflow_client.trajectory import ChunkReport
from edgeflow_client.types import ActionSchema, Command, Execution, StageTimings

DISPLACEMENTS = "directive.action.values, the displacements that it answers in"
PATIENCE = 10  # readings of the wrong kind before it is said
_log = logging.getLogger("edgeflow_client")


class Advice:
    """Detects a loop that cannot move its robot, from what it reads and pushes.

    It logs each kind of advice once, while the robot holds. A loop that reads the right kind at least once, among
    others, is left alone.
    """

    def __init__(self) -> None:
        self._wrong = 0
        self._right = self._told_pose = self._told_flood = self._told_undecided = False

    def read(self) -> None:
        """The right property for this policy was read."""
        self._right = True

    def misread(self, read: str, instead: str) -> None:
        """The wrong property for this policy was read. instead: the property to read."""
        self._wrong += 1
        if self._wrong == PATIENCE and not self._right:
            _log.warning("directive.%s is None for every action of this policy: read %s", read, instead)

    def pose_missing(self) -> None:
        """A target was read whose frame was pushed without a pose."""
        if not self._told_pose:
            self._told_pose = True
            _log.warning(
                "directive.tool is None: this policy moves the tool from the pose of its frame, and the frame was "
                "pushed without one; write client.push(images, pose=...)"
            )

    def undecided(self) -> None:
        """Targets have no look-ahead, because it is unknown if actions stand for one control step."""
        if not self._told_undecided:
            self._told_undecided = True
            _log.warning(
                "the policy does not state its control rate, so targets are not extended by the age of their action: "
                "pass aging=Aging(control_rate_hz=...) if each action stands for one control step, else aging=OFF"
            )

    def flooded(self) -> None:
        """The service ended a stream because of far too many frames."""
        if not self._told_flood:
            self._told_flood = True
            _log.warning(
                "the service ended the stream because frames came far above the declared rate: begin each step of "
                "the loop with edgeflow_client.rate.RateKeeper(control_period_s).wait()"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The resolved target of an action."""

    pose: Pose | None
    """The pose of the tool; None if no dimension moves it relatively."""
    values: Mapping[str, float]
    """Every other dimension by name, unchanged."""
    age_s: float = 0.0
    """The action's age when the command takes effect."""
    look_ahead_s: float = 0.0
    """The part of age_s for which the displacement was extended; 0 = none."""
    factor: float = 1.0
    """Factor by which the displacement was multiplied for the look-ahead. For a row of a chunk anchored to its frame,
    look_ahead_s is the time from the capture to the row's moment, and factor the number of rows composed.
    """
    speed: float = 1.0
    """The share of full speed to move at; 1 unless `Aging.slow_from_s` is set."""
    settled: int = 0
    """Leading tokens that are verified, as in Action."""
    tolerance_bins: int = 0
    """As in Action."""
    max_passes: int = 0
    """As in Action."""
    step: int = 0
    """The row of the chunk."""
    step_age_s: float = 0.0
    """The age counted from the row's own moment; age_s if the horizon is 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolTarget(Target):
    """The target of an action that displaces the tool."""

    pose: Pose
    """The pose to which the tool must move, in the frame of the pose that was pushed."""


def _no_chunk() -> Vector:
    return np.zeros((0, 0))


def _no_motion() -> Vector:
    return np.zeros(3)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Action:
    """An action, or the row of a chunk that is due; `values` is [dims] in the schema's units."""

    seq: int
    """The frame it answers."""
    epoch: int
    """Number of the episode."""
    values: Vector
    """`[dims]`: the numbers, in the schema's units."""
    token_ids: tuple[int, ...]
    """Tokens that the numbers stand for."""
    schema: ActionSchema
    """The meaning of the numbers."""
    stamp_ns: int
    """Capture time of that frame, on the robot's own monotonic clock like the next two."""
    received_ns: int
    """Time of receipt."""
    valid_until_ns: int
    """End of validity."""
    frame_pose: Pose | None
    """Pose of the tool pushed with that frame, if any."""
    timings: StageTimings
    """Time in each stage of the service."""
    server_ns: int
    """Time from the frame's arrival in the service to the answer's departure."""
    age_limit_ns: int | None = None
    """The age, counted from the moment of its row, at which the action ends; None = no limit."""
    settled: int = 0
    """Number of leading tokens that are verified, of len(token_ids)."""
    tolerance_bins: int = 0
    """How far a verified token may be from its draft, as served."""
    max_passes: int = 0
    """The limit of passes as served; 0 if the frame had no drafts."""
    aging: Aging = OFF
    """How targets allow for the action's age."""
    chunk: Vector = field(default_factory=_no_chunk)
    """[horizon, dims]: all rows after blending. `values` is row `step`, for the moment start_ns + step * step_ns. By
    default it is the one row `values`.
    """
    step: int = 0
    """The row of the chunk."""
    step_ns: int = 0
    """Time between two rows."""
    rows: int = 0
    """Rows to execute, after which the robot stays at the last of them; 0 = all."""
    start_ns: int = 0
    """The moment of row 0: the capture, or the receipt if the robot stood still until then; 0 = the capture."""
    execution: Execution | None = None
    """How answers are executed; None = the service did not say."""
    rate: float = 1.0
    """The share of the chunk's rate at which its rows are executed; `step_ns` allows for it."""
    report: ChunkReport = field(default_factory=ChunkReport)
    """How the chunk was made; its `continues` is a number returned by `push`."""
    goal_velocity: Vector = field(default_factory=_no_motion)
    """`[3]`, m/s, in the frame of frame_pose: the target moves on with it, for `aging.follow_s` from the capture."""
    read_ns: int = 0
    """The moment of a moving target; 0 = the receipt."""
    apart: bool = False
    """On arrival, a chunk other than `report.continues` was in execution."""
    advice: Advice = field(default_factory=Advice)
    """The advice of the session."""

    def __post_init__(self) -> None:
        if not self.chunk.size:
            object.__setattr__(self, "chunk", self.values.reshape(1, -1))

    @property
    def age_ns(self) -> int:
        """Age of the frame at receipt, counted from its capture for every step."""
        return self.received_ns - self.stamp_ns

    @property
    def moves_tool(self) -> bool:
        """True if it displaces the tool."""
        return bool(_moves(self.schema, self.values))

    @property
    def late(self) -> bool:
        """True if it does not fit the chunk in execution on arrival: it came later than it was conditioned on, or it
        continues another chunk.
        """
        return self.apart or self.report.is_late(self.age_ns, self.step_ns)

    @property
    def over_ns(self) -> int:
        """Time from which none of its rows is due: after the step of the last one, or at the end of validity."""
        alone_ns = self.received_ns + self.schema.motion_ns
        return min(self.timeline.over_ns if self.step_ns else alone_ns, self.valid_until_ns)

    @property
    def timeline(self) -> Timeline:
        """The moments of the chunk's rows."""
        return Timeline(self.start_ns or self.stamp_ns, self.step_ns, self.rows or len(self.chunk))

    @property
    def moment_ns(self) -> int:
        """The moment for which `values` are meant: that of row 0, and the steps since."""
        return self.timeline.moment_ns(self.step)

    def due(self, now_ns: int) -> Action:
        """The action with the row that is due, or the present moment of a target that moves; the action itself if
        neither changed. It never goes back.
        """
        if self.goal_velocity.any():
            read_ns = now_ns - (now_ns - self.received_ns) % STEP_NS
            return replace(self, read_ns=read_ns) if read_ns > max(self.read_ns, self.received_ns) else self
        step = self.timeline.step_at(now_ns)
        return self if step <= self.step else replace(self, step=step, values=self.chunk[step].copy())

    def target(self, pose_of: Pose | Literal["frame"] = "frame", now_ns: int | None = None) -> Target:
        """Resolve the action against the pose of its frame ("frame") or against a given pose.

        now_ns: when the command is given, on the client's clock; None = at receipt, or at the row's or the moving
        target's moment if that is later. Against its frame, a row of a chunk is the motion of all rows up to it. From a
        given pose it is one row, and there is no look-ahead: a present pose contains the motion since the frame, which
        would count twice. Raises FailedPrecondition if the action is relative and its frame was pushed without a pose,
        and if the target is not finite.
        """
        aging = self.aging
        commanded_ns = max(self.received_ns, self.moment_ns, self.read_ns) if now_ns is None else now_ns
        age_s = aging.age_s(self.stamp_ns, commanded_ns)
        step_age_s = aging.age_s(self.moment_ns, commanded_ns)
        with np.errstate(all="ignore"):  # a value that is too large is reported below
            target = self._resolved(aging, age_s, pose_of)
        if target.pose is not None and not target.pose.finite:
            raise FailedPrecondition(
                f"{self.values.tolist()} is too large a motion for a target",
                field="action.values",
                reason=Reason.ACTION_OUT_OF_LIMITS,
            )
        return replace(
            target,
            age_s=age_s,
            speed=aging.speed(step_age_s),
            step=self.step,
            step_age_s=step_age_s,
            settled=self.settled,
            tolerance_bins=self.tolerance_bins,
            max_passes=self.max_passes,
        )

    def _resolved(self, aging: Aging, age_s: float, pose_of: Pose | Literal["frame"]) -> Target:
        if not isinstance(pose_of, str):
            return resolve(self.schema, self.values, pose_of)
        if len(self.chunk) > 1:
            target = resolve_rows(self.schema, self.chunk[: self.step + 1], self.frame_pose)
            return replace(target, look_ahead_s=self.step * self.step_ns / 1e9 if target.pose else 0.0)
        factor = self._factor(aging, age_s)
        target = resolve(self.schema, self.values, self.frame_pose, factor)
        if target.pose is not None and self.goal_velocity.any():
            moved = self.goal_velocity * min(age_s, aging.follow_s)
            return replace(target, pose=composed(target.pose.position + moved, target.pose.wxyz))
        return replace(target, look_ahead_s=(factor - 1.0) / aging.rate_hz(self.schema) if factor > 1.0 else 0.0)

    def _factor(self, aging: Aging, age_s: float) -> float:
        """The factor of the displacement."""
        moves, most_s = _moves(self.schema, self.values), aging.most_look_ahead_s(self.schema)
        if not most_s or not moves:
            return 1.0
        aging.check(self.schema)
        rate_hz = aging.rate_hz(self.schema)
        return look_ahead_factor(moves, self.schema, min(age_s, most_s) * rate_hz, most_s * rate_hz)


@dataclass(frozen=True, slots=True)
class Directive:
    """The command for the robot now.

    ACT comes with an action, HOLD and STOP with a reason.
    """

    command: Command
    """ACT, HOLD or STOP."""
    reason: str = ""
    """Why to hold or stop."""
    action: Action | None = None
    """The action, with ACT only."""
    needs_reset: bool = False
    """No action will follow until `reset` is called."""
    text: str = ""
    """One line for people where an operator holds the robot (reason OPERATOR_HOLD); "" elsewhere."""

    @property
    def joints(self) -> Vector | None:
        """`[dims]`, the row that is due of a policy whose actions are absolute, such as joint angles and a gripper.

        In the order and the units of `client.opened.schema`. None for HOLD and STOP, and where a number of the action
        is a displacement: of the tool, read `tool`; of anything else, `action.values`.
        """
        action = self.action
        if action is None:
            return None
        if any(action.schema.relative):
            action.advice.misread("joints", "directive.tool" if action.moves_tool else DISPLACEMENTS)
            return None
        action.advice.read()
        return action.values

    @property
    def tool(self) -> ToolTarget | None:
        """The target pose of the tool, and every other dimension, of a policy whose actions displace the tool.

        The action resolved against the pose of its frame; of a chunk, the row that is due. None for HOLD and STOP, if
        that frame was pushed without a pose, and where the actions do not displace the tool: then read `joints`.
        """
        action = self.action
        if action is None:
            return None
        if not action.moves_tool:
            action.advice.misread("tool", DISPLACEMENTS if any(action.schema.relative) else "directive.joints")
            return None
        action.advice.read()
        if action.frame_pose is None:
            action.advice.pose_missing()
            return None
        target = action.target()
        return target if isinstance(target, ToolTarget) else None


def resolve(schema: ActionSchema, values: Vector, anchor: Pose | None, factor: float = 1.0) -> Target:
    """Apply relative x, y, z, roll, pitch and yaw, `factor` times, to the anchor; all other dimensions pass through.

    Frame "tool": the displacement is expressed in the anchor's frame (composed on its right). Frame "base": the
    position is added, and the rotation is about the base's axes (composed on the left).
    """
    moves = _moves(schema, values)
    others = {name: float(value) for name, value in zip(schema.names, values, strict=True) if name not in moves}
    if not moves:
        return Target(pose=None, values=others)
    pose = _moved(_anchored(anchor), displacement(moves, schema, factor), schema)
    return ToolTarget(pose=pose, values=others, factor=factor)


def resolve_rows(schema: ActionSchema, rows: Vector, anchor: Pose | None) -> Target:
    """Apply the rows [n, dims] of a chunk one after another, each like `resolve`; other dimensions are the last row's.

    The limits of the schema bound each row, not their sum.
    """
    target = resolve(schema, rows[-1], anchor)
    if target.pose is None:
        return target
    pose = _anchored(anchor)
    for row in rows:
        pose = _moved(pose, displacement(_moves(schema, row), schema), schema)
    return replace(target, pose=pose, factor=float(len(rows)))


def _anchored(anchor: Pose | None) -> Pose:
    if anchor is None:
        raise FailedPrecondition(
            "a relative action needs the pose of its frame: pass it to push", field="pose", reason=Reason.POSE_MISSING
        )
    return anchor


def _moved(pose: Pose, by: Pose, schema: ActionSchema) -> Pose:
    """The pose after a displacement in the frame of the schema."""
    if schema.frame == "tool":
        return compose(pose, by)
    return composed(pose.position + by.position, multiply(by.wxyz, pose.wxyz))


def _moves(schema: ActionSchema, values: Vector) -> dict[str, float]:
    """The relative dimensions that move the tool."""
    return {
        name: float(value)
        for name, value, relative in zip(schema.names, values, schema.relative, strict=True)
        if relative and name in (*POSITION, *ROTATION)
    }
