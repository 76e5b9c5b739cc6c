"""The six-joint arm: inverse kinematics, a speed-limited Cartesian controller, and the state that a policy reads."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from edgeflow.lab.demo.world.layout import TOOL_DOWN
from edgeflow.lab.demo.world.scene import Scene
from edgeflow_client.pose import Pose, Vector, compose, conjugate, from_rotvec, multiply, relative, to_rotvec

JOINTS: Final = 6
MAX_SPEED: Final = 0.25  # m/s of the tool
MAX_TURN: Final = 1.5  # rad/s of the tool
GRIPPER_TIME: Final = 0.12  # seconds from open to closed
GRIPPER_STROKE: Final = 0.042  # metres a finger travels from open to closed
REACH_LOW: Final = np.array([0.28, -0.30, 0.02])  # metres; goals outside are clamped
REACH_HIGH: Final = np.array([0.64, 0.30, 0.46])
_HOME: Final = np.array([0.0, 0.30, 0.20, 0.0, -0.50, 0.0])
_DAMPING: Final = 1e-4  # damping of the least squares, squared; keeps steps finite near singular poses
_TOLERANCE: Final = 1e-4  # metres and radians at which a solution counts as exact
STATE_NAMES: Final = ("x", "y", "z", "tilt_x", "tilt_y", "turn_z", "gripper")
STATE_UNITS: Final = ("m", "m", "m", "rad", "rad", "rad", "fraction")


class Kinematics:
    """Joint angles for a tool pose, by damped least squares on the site's Jacobian."""

    def __init__(self, scene: Scene) -> None:
        self._mujoco, self._model = scene.mujoco, scene.model
        self._scratch: Any = scene.mujoco.MjData(scene.model)
        self._site = scene.model.site("tcp").id
        self._low, self._high = scene.model.jnt_range[:JOINTS].T.copy()
        self._jacobian = np.zeros((6, scene.model.nv))

    def solve(self, target: Pose, start: Vector, iterations: int) -> tuple[Vector, float]:
        """Angles `[6]` nearest to the target, and the remaining error (metres plus radians)."""
        angles, left = start.copy(), np.inf
        for _ in range(iterations):
            error = self._error(target, angles)
            left = float(np.linalg.norm(error[:3]) + np.linalg.norm(error[3:]))
            if left < _TOLERANCE:
                break
            jacobian = self._jacobian[:, :JOINTS]
            step = jacobian.T @ np.linalg.solve(jacobian @ jacobian.T + _DAMPING * np.eye(6), error)
            # the Jacobian holds only near these angles, so a step is at most 0.3 rad
            angles = np.clip(angles + np.clip(step, -0.3, 0.3), self._low, self._high)
        return angles, left

    def _error(self, target: Pose, angles: Vector) -> Vector:
        """Twist `[6]` from the tool at these angles to the target; fills the Jacobian there."""
        self._scratch.qpos[:JOINTS] = angles
        self._mujoco.mj_kinematics(self._model, self._scratch)
        self._mujoco.mj_comPos(self._model, self._scratch)  # mj_jacSite reads what it computes
        self._mujoco.mj_jacSite(self._model, self._scratch, self._jacobian[:3], self._jacobian[3:], self._site)
        quaternion = np.zeros(4)
        self._mujoco.mju_mat2Quat(quaternion, self._scratch.site_xmat[self._site])
        turn = to_rotvec(multiply(target.wxyz, conjugate(quaternion)))
        return np.concatenate([target.position - self._scratch.site_xpos[self._site], turn])


class ToolMotion:
    """Moves the tool towards a goal pose, never faster than MAX_SPEED and MAX_TURN."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._kinematics = Kinematics(scene)
        self._site = scene.model.site("tcp").id
        self._angles = _HOME.copy()
        self.goal = self._setpoint = self.pose()
        self.closing = False
        self.aperture = 1.0

    def pose(self) -> Pose:
        """Pose of the tool centre point, from the simulated joints."""
        data, quaternion = self._scene.data, np.zeros(4)
        self._scene.mujoco.mju_mat2Quat(quaternion, data.site_xmat[self._site])
        return Pose(data.site_xpos[self._site].copy(), wxyz=quaternion)

    def joints(self) -> Vector:
        """The simulated angles `[6]`, radians."""
        return np.array(self._scene.data.qpos[:JOINTS])

    def teleport(self, target: Pose, gripper: float = 1.0) -> float:
        """Set the joints so that the tool is at `target`, at rest; return the remaining error (metres plus radians)."""
        data = self._scene.data
        self._angles, left = self._kinematics.solve(target, _HOME, iterations=40)
        data.qpos[:JOINTS], data.qpos[JOINTS:] = self._angles, GRIPPER_STROKE * (1.0 - gripper)
        data.qvel[:] = 0.0
        data.ctrl[:JOINTS], data.ctrl[JOINTS:] = self._angles, GRIPPER_STROKE * (1.0 - gripper)
        self._scene.mujoco.mj_forward(self._scene.model, data)
        self.goal = self._setpoint = self.pose()
        self.aperture, self.closing = gripper, False
        return left

    def head_for(self, goal: Pose) -> None:
        """Set a new goal; its position is clamped to the reachable box."""
        self.goal = Pose(np.clip(goal.position, REACH_LOW, REACH_HIGH), wxyz=goal.wxyz)

    def hold(self) -> None:
        """Hold the controller's set point."""
        self.goal = self._setpoint

    def advance(self, seconds: float) -> None:
        """Move the set point and set the actuators; the caller steps the physics."""
        self._setpoint = approach(self._setpoint, self.goal, seconds)
        # starting from the angles before, three iterations suffice for the small step
        self._angles, _ = self._kinematics.solve(self._setpoint, self._angles, iterations=3)
        change = seconds / GRIPPER_TIME
        self.aperture = float(np.clip(self.aperture + (-change if self.closing else change), 0.0, 1.0))
        self._scene.data.ctrl[:JOINTS] = self._angles
        self._scene.data.ctrl[JOINTS:] = GRIPPER_STROKE * (1.0 - self.aperture)


def approach(pose: Pose, goal: Pose, seconds: float) -> Pose:
    """The pose after `seconds` of motion towards the goal, with translation and rotation limited separately."""
    left = relative(pose, goal)
    turn = to_rotvec(left.wxyz)
    far, angle = float(np.linalg.norm(left.position)), float(np.linalg.norm(turn))
    move = left.position * min(1.0, MAX_SPEED * seconds / max(far, 1e-12))
    return compose(pose, Pose(move, wxyz=from_rotvec(turn * min(1.0, MAX_TURN * seconds / max(angle, 1e-12)))))


def state_of(tool: Pose, aperture: float) -> Vector:
    """State `[7]`: position in the base frame, rotation vector from the tool pointing down, gripper (1 open)."""
    return np.concatenate([tool.position, to_rotvec(multiply(conjugate(TOOL_DOWN), tool.wxyz)), [aperture]])
