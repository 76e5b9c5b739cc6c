"""The arm of Meta-World as a robot of the SDK: its commands in answer to an old frame."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeflow_client.actions import Action
from edgeflow_client.aging import LOOK_AHEAD_S, OFF, Aging
from edgeflow_client.pose import Pose, identity
from edgeflow_client.types import ActionSchema, StageTimings

CONTROL_RATE_HZ = 80.0
STEP_NS = 12_500_000
STEP_M = 0.01  # by which an output of 1 displaces the commanded hand pose in one step
Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class OldActions:
    """A way of executing old actions."""

    name: str
    anchored: bool
    """True: against the pose in the frame; false: against the current pose."""
    aging: Aging
    most_steps: float = 1.0
    """Displacement that the schema permits, in steps."""


PRESENT = OldActions("present pose", False, OFF)
ANCHORED = OldActions("anchored", True, OFF)
DEFAULT = OldActions("default: look-ahead", True, Aging(), 1.0 + LOOK_AHEAD_S * CONTROL_RATE_HZ)
WITHIN_A_STEP = OldActions("look-ahead, one step's limits", True, Aging())


def command(motion: OldActions, outputs: Vector, frame_m: Vector, present_m: Vector, age_steps: int) -> Vector:
    """The simulator's input `[4]` for the expert's outputs `[4]` that answer a frame `age_steps` old.

    frame_m, present_m: commanded hand positions `[3]` at that frame and now.
    """
    target = _action(motion, outputs, frame_m, age_steps).target("frame" if motion.anchored else _at(present_m))
    if target.pose is None:
        raise ValueError("the arm's schema moves the tool")
    shift = np.clip((target.pose.position - present_m) / STEP_M, -1.0, 1.0)
    return np.append(shift, target.values["gripper"])


def _action(motion: OldActions, outputs: Vector, frame_m: Vector, age_steps: int) -> Action:
    outputs = np.clip(outputs, -1.0, 1.0)  # like the simulator
    return Action(
        seq=1,
        epoch=1,
        values=np.append(outputs[:3] * STEP_M, outputs[3]),
        token_ids=(),
        schema=_schema(motion.most_steps * STEP_M),
        stamp_ns=0,
        received_ns=age_steps * STEP_NS,
        valid_until_ns=(age_steps + 1) * STEP_NS,
        frame_pose=_at(frame_m),
        timings=StageTimings(),
        server_ns=0,
        aging=motion.aging,
    )


def _schema(limit_m: float) -> ActionSchema:
    return ActionSchema(
        names=("x", "y", "z", "gripper"),
        units=("m", "m", "m", "1"),
        low=(-limit_m, -limit_m, -limit_m, -1.0),
        high=(limit_m, limit_m, limit_m, 1.0),
        relative=(True, True, True, False),
        control_rate_hz=CONTROL_RATE_HZ,
    )


def _at(position: Vector) -> Pose:
    return Pose(position, wxyz=identity().wxyz)
