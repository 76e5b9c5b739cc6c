"""The scripted expert, which computes the exact action from the simulator's state."""

from __future__ import annotations

from typing import Final

import numpy as np

from edgeflow.lab.demo.world.sim import RobotSim
from edgeflow.lab.demo.world.task import distances
from edgeflow_client.pose import Pose, Vector, compose, from_rotvec, relative, to_rotvec

CLOSE_WITHIN: Final = 0.008  # metres; stricter than what counts as a grasp, so that small errors are forgiven
CLOSE_ALIGNED: Final = np.deg2rad(8.0)


def expert_action(tool: Pose, grasp: Pose) -> Vector:
    """The action `[7]`: displacement (m) and rotation vector (rad) to the grasp pose, in the tool's frame; gripper."""
    left = relative(tool, grasp)
    far, turned = distances(tool, grasp)
    closed = far <= CLOSE_WITHIN and turned <= CLOSE_ALIGNED
    return np.concatenate([left.position, to_rotvec(left.wxyz), [0.0 if closed else 1.0]])


def action_goal(frame: Pose, action: Vector) -> Pose:
    """The tool pose that an action `[7]` commands when resolved against `frame`."""
    return compose(frame, Pose(np.asarray(action[:3], float), wxyz=from_rotvec(np.asarray(action[3:6], float))))


class Expert:
    """The expert of one simulation; it acts on the current state and task."""

    def __init__(self, sim: RobotSim) -> None:
        self._sim = sim

    def __call__(self, _image: object, _instruction: str) -> Vector:
        return expert_action(self._sim.pose(), self._sim.grasps()[self._sim.task.target])
