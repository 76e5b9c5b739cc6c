"""Robots with the SDK's defaults behind connections that stall: how old is the oldest frame that they act on?"""

from __future__ import annotations

import contextlib
import math
import random
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

import numpy as np

from benchmarks.chaos.fake_server import ROBOT, SERVICE, Proxy
from benchmarks.chaos.robots import INSTRUCTION, told_to_stop
from edgeflow_client.actions import Directive
from edgeflow_client.errors import EdgeflowError
from edgeflow_client.robot import RobotClient
from edgeflow_client.types import CameraSpec, ImageFormat

HZ, POLL_S = 5.0, 0.01
CAMERA = CameraSpec("wrist", 16, 16, ImageFormat.RGB8)
GIVE_UP_S = 30.0  # a robot that does not act again this long after a stall
DIRECTIONS = ((SERVICE, ROBOT), (SERVICE,), (ROBOT,))
STALLED = "stalled"  # sent after each stall


@dataclass(frozen=True, slots=True, kw_only=True)
class StalledRobotsPlan:
    """The task of a process of robots."""

    stalls_s: Sequence[Sequence[float]]
    """Lengths of each robot's stalls; a robot without stalls acts for watch_s."""
    seed: int
    limit_ms: float | None
    """The age limit to judge by; None = the one in each action."""
    watch_s: float = 0.0
    max_action_age_s: float | None = None
    """The SDK's setting."""


@dataclass(slots=True)
class StalledRobotRecord:
    """The record of a robot."""

    late_ms: float = -math.inf
    """Age of the oldest frame acted on when `latest` returned its action, minus its limit; -inf = it did not act on
    any.
    """
    asked: int = 0
    acted: int = 0
    beyond: int = 0
    """How often `latest` returned an action beyond the limit."""
    too_old: int = 0
    lost: int = 0
    """Number of stalls after which the robot did not act again."""
    stalls_s: list[float] = field(default_factory=list)


class StalledRobot:
    """One robot and its own proxy; call `step` often."""

    def __init__(self, stack: ExitStack, port: int, plan: StalledRobotsPlan, number: int) -> None:
        self.watched = StalledRobotRecord()
        self.acted_ns = 0  # receipt of its newest action
        self._plan, self._left_s = plan, list(plan.stalls_s[number])
        self._stalling = bool(self._left_s)
        self._random = random.Random(f"{plan.seed} {number}")
        self._image = np.zeros((CAMERA.height, CAMERA.width, 3), np.uint8)
        self._proxy = stack.enter_context(Proxy())
        self._proxy.target = port
        self.client = stack.enter_context(
            RobotClient(
                self._proxy.address,
                cameras=[CAMERA],
                instruction=INSTRUCTION,
                control_period_s=1 / HZ,
                open_timeout_s=30.0,
                max_action_age_s=plan.max_action_age_s,
            )
        )
        self._frame_at = self._resumed_at = time.monotonic()
        self._stall_at = self._resume_at = 0.0  # 0 = not planned

    def step(self) -> bool:
        """Push a frame if one is due, ask for the directive, begin or end a stall; True when one has just ended."""
        now = time.monotonic()
        if now >= self._frame_at:
            self._frame_at = max(self._frame_at + 1 / HZ, now)
            with contextlib.suppress(EdgeflowError):
                self.client.push(self._image)
        before_ns = time.monotonic_ns()
        directive = self.client.latest()
        self._judge(directive, before_ns, time.monotonic_ns())
        if directive.needs_reset:
            with contextlib.suppress(EdgeflowError):
                self.client.reset()
        return self._stalls(now)

    def finished(self) -> bool:
        """True after the last stall, once the robot acts again or is given up."""
        now = time.monotonic()
        if not self._stalling:
            return now >= self._resumed_at + self._plan.watch_s
        waiting = self._left_s or self._stall_at or self._resume_at
        return not waiting and (self.acts_again() or self._is_lost(now))

    def _judge(self, directive: Directive, before_ns: int, after_ns: int) -> None:
        seen, action = self.watched, directive.action
        seen.asked += 1
        if action is None:
            return
        seen.acted += 1
        self.acted_ns = action.received_ns
        limit_ns = (action.age_limit_ns or 0) if self._plan.limit_ms is None else self._plan.limit_ms * 1e6
        seen.late_ms = max(seen.late_ms, (after_ns - action.stamp_ns - limit_ns) / 1e6)
        seen.beyond += before_ns - action.stamp_ns > limit_ns

    def _stalls(self, now: float) -> bool:
        if self._resume_at:
            if now < self._resume_at:
                return False
            self._proxy.resume()
            self._resume_at, self._resumed_at = 0.0, now
            return True
        if self._stall_at and now >= self._stall_at:
            seconds = self._left_s.pop()
            self.watched.stalls_s.append(seconds)
            self._proxy.stall(self._random.choice(DIRECTIONS))
            self._stall_at, self._resume_at = 0.0, now + seconds
        elif not self._stall_at and self._left_s and (self.acts_again() or self._is_lost(now)):
            self.watched.lost += not self.acts_again()
            self._stall_at = now + self._random.uniform(0.05, 0.4)
        return False

    def acts_again(self) -> bool:
        """True if it acted since its last stall ended."""
        return self.acted_ns > self._resumed_at * 1e9

    def _is_lost(self, now: float) -> bool:
        return now > self._resumed_at + GIVE_UP_S


def stalled_robots(link: Connection, port: int, plan: StalledRobotsPlan) -> None:
    """Work of a process: robots go through their stalls, each of which is reported; at the end their
    records are sent.
    """
    with ExitStack() as stack:
        robots = [StalledRobot(stack, port, plan, number) for number in range(len(plan.stalls_s))]
        while not told_to_stop(link, POLL_S) and not all(robot.finished() for robot in robots):
            for robot in robots:
                if robot.step():
                    link.send(STALLED)
        link.send(_seen(robots))


def watching_robots(link: Connection, port: int, plan: StalledRobotsPlan) -> None:
    """Work of a process: robots act until asked to stop. A number asks for a message once all have acted since then."""
    since_ns: int | None = None
    with ExitStack() as stack:
        robots = [StalledRobot(stack, port, plan, number) for number in range(len(plan.stalls_s))]
        while True:
            if link.poll(POLL_S):
                asked = link.recv()
                if not isinstance(asked, int):
                    break
                since_ns = asked
            for robot in robots:
                robot.step()
            if since_ns is not None and all(robot.acted_ns > since_ns for robot in robots):
                since_ns = None
                link.send("acting")
        link.send(_seen(robots))


def _seen(robots: Sequence[StalledRobot]) -> list[StalledRobotRecord]:
    for robot in robots:
        robot.watched.too_old = robot.client.statistics().too_old
        if robot.watched.stalls_s:
            robot.watched.lost += not robot.acts_again()
    return [robot.watched for robot in robots]
