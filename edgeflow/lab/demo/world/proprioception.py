"""The numbers by which the simulated arm states its pose and gripper to a policy."""

from __future__ import annotations

from typing import Final

import numpy as np

from edgeflow.lab.demo.world.layout import TOOL_DOWN
from edgeflow_client.pose import Pose, Vector, conjugate, multiply, to_rotvec

STATE_NAMES: Final = ("x", "y", "z", "tilt_x", "tilt_y", "turn_z", "gripper")
STATE_UNITS: Final = ("m", "m", "m", "rad", "rad", "rad", "fraction")


def state_of(tool: Pose, aperture: float) -> Vector:
    """State `[7]`: position in the base frame, rotation vector from the tool pointing down, gripper (1 open)."""
    return np.concatenate([tool.position, to_rotvec(multiply(conjugate(TOOL_DOWN), tool.wxyz)), [aperture]])
