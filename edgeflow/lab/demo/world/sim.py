"""A simulated arm with a wrist camera, whose time the caller advances.

Grasping is kinematic: contact is not simulated; an episode succeeds when the gripper closes at the named handle's pin,
near enough and well enough aligned (edgeflow/lab/demo/world/task.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from edgeflow.lab.demo.world.layout import TOOL_DOWN, Handle, sample_layout
from edgeflow.lab.demo.world.robot import ToolMotion
from edgeflow.lab.demo.world.scene import Image, Moment, Scene, Spectator
from edgeflow.lab.demo.world.task import TIME_LIMIT, EpisodeOutcome, Task, judge_closing, sample_task
from edgeflow_client.pose import Pose, Vector, from_rotvec, multiply

START_LOW: Final = np.array([0.37, -0.07, 0.28])  # metres, the volume in which the tool starts
START_HIGH: Final = np.array([0.47, 0.07, 0.36])
START_YAW: Final = 0.3  # radians
START_TILT: Final = 0.12  # radians
JUMP_S: Final = (0.3, 1.3)  # seconds from the reset, between which an object jumps
_CONTROL_STEPS: Final = 2  # physics steps per control step
_HALF_CLOSED: Final = 0.5


@dataclass(frozen=True, slots=True, eq=False)
class ObjectJump:
    """A jump of the target handle."""

    at_s: float
    """Seconds from the reset."""
    by: Vector
    """`[3]`, metres."""


class RobotSim:
    """The simulated robot. Deterministic: equal seeds and equal calls give bit-equal frames and poses."""

    def __init__(self, seed: int, object_speed: float = 0.0, object_jump_m: float = 0.0) -> None:
        self._scene = Scene()
        self._arm = ToolMotion(self._scene)
        self._object_speed = object_speed
        self._object_jump_m = object_jump_m
        self._control_dt = _CONTROL_STEPS * float(self._scene.model.opt.timestep)
        self.reset(seed)

    def reset(self, seed: int) -> None:
        """Start a new episode: handles, task and start pose from the seed; time 0."""
        rng = np.random.default_rng(seed)
        self.handles: tuple[Handle, ...] = sample_layout(rng, self._object_speed)
        self.task: Task = sample_task(rng, self.handles)
        self.jump: ObjectJump | None = None
        """The jump of the target handle, once it jumped."""
        self._jumps_at_s = float(np.random.default_rng((seed, 1)).uniform(*JUMP_S))
        self._begin(sample_start(rng))

    def _begin(self, start: Pose) -> None:
        self._scene.mujoco.mj_resetData(self._scene.model, self._scene.data)
        self._scene.paint(self.handles)
        self._scene.place(self.handles, 0.0)
        self._ticks, self.outcome = 0, EpisodeOutcome.RUNNING
        self._arm.teleport(start)

    @property
    def time(self) -> float:
        """Seconds since the reset."""
        return self._ticks * self._control_dt

    @property
    def instruction(self) -> str:
        return self.task.instruction

    def pose(self) -> Pose:
        """Pose of the tool in the base frame, metres."""
        return self._arm.pose()

    def grasps(self) -> list[Pose]:
        """The current grasp pose of every handle (ground truth for the expert and for judging)."""
        return [handle.grasp(self.time) for handle in self.handles]

    def goal(self) -> Pose:
        """The tool pose that was commanded last."""
        return self._arm.goal

    @property
    def joints(self) -> Vector:
        """The angles `[6]` of the arm's joints, radians."""
        return self._arm.joints()

    @property
    def aperture(self) -> float:
        """The gripper: 1 open, 0 closed."""
        return self._arm.aperture

    def command(self, goal: Pose, gripper: float) -> None:
        """Move towards a tool pose. gripper: 1 open, 0 closed; below 0.5 closes it."""
        self._arm.head_for(goal)
        self._arm.closing = gripper < _HALF_CLOSED

    def hold(self) -> None:
        """Hold the position; the gripper keeps its command."""
        self._arm.hold()

    def step(self, seconds: float) -> None:
        """Advance time by whole control steps; stops early when the episode ends."""
        for _ in range(round(seconds / self._control_dt)):
            if self.outcome is not EpisodeOutcome.RUNNING:
                return
            self._control_step()

    def _control_step(self) -> None:
        open_before = self._arm.aperture >= _HALF_CLOSED
        self._arm.advance(self._control_dt)
        self._ticks += 1
        if self._object_jump_m and self.jump is None and self.time >= self._jumps_at_s:
            self._jump()
        self._scene.place(self.handles, self.time)
        self._scene.mujoco.mj_step(self._scene.model, self._scene.data, _CONTROL_STEPS)
        self._scene.mujoco.mj_kinematics(self._scene.model, self._scene.data)
        if open_before and self._arm.aperture < _HALF_CLOSED:
            self.outcome = judge_closing(self.pose(), self.grasps(), self.task.target)
        if self.outcome is EpisodeOutcome.RUNNING and self.time >= TIME_LIMIT - 1e-9:
            self.outcome = EpisodeOutcome.TIMEOUT

    def _jump(self) -> None:
        """Let the target handle jump once."""
        target, time = self.task.target, self.time
        moved = self.handles[target].jumped(time, self._object_jump_m)
        self.jump = ObjectJump(time, moved.pose(time).position - self.handles[target].pose(time).position)
        self.handles = tuple(moved if index == target else each for index, each in enumerate(self.handles))

    def capture(self) -> Image:
        """The wrist camera's frame `[96, 96, 3]`, RGB."""
        return self.draw(self.moment())

    def moment(self) -> Moment:
        """The current view of the camera, not rendered yet."""
        return self._scene.moment()

    def draw(self, moment: Moment, spectator: Spectator | None = None) -> Image:
        """The frame that `capture` returned, or would have returned, at a moment of this episode; or a spectator's
        view.
        """
        return self._scene.picture(moment, spectator)

    def close(self) -> None:
        """Free the GL context."""
        self._scene.close()


def sample_start(rng: np.random.Generator) -> Pose:
    """A random tool pose above the table, pointing roughly down, from which all handles are in view."""
    yaw, tilt = rng.uniform(-START_YAW, START_YAW), rng.uniform(-START_TILT, START_TILT, 2)
    turned = multiply(from_rotvec(np.array([0.0, 0.0, yaw])), from_rotvec(np.array([*tilt, 0.0])))
    return Pose(rng.uniform(START_LOW, START_HIGH), wxyz=multiply(turned, TOOL_DOWN))
