"""Policies without a network: random actions, and scripts that read the environment's own state."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from edgeflow.lab.sim.environment import GymFrame, GymRobot, Numbers
from edgeflow_client.errors import ConfigError

Choice = Callable[[GymFrame], Numbers]
_NEAR = 110.0  # distance from the middle of the block at which the pusher walks around it
_WALK = 0.5  # radians around the block per step
_PUSH = 25.0  # how far ahead of the pusher its target is
_LEVER = 45.0  # the largest distance from the middle of the block at which it is pushed, which turns it


def chosen(kind: str, robot: GymRobot) -> Choice:
    """The policy of a name, `random` or `scripted`; ConfigError where no script is known."""
    if kind == "random":
        return lambda _frame: robot.random_action()
    namespace = robot.id.rpartition("/")[0]
    scripts = {"gym_pusht": _push, "gym_aloha": _sway, "Meta-World": _expert}
    if namespace not in scripts:
        raise ConfigError(f"policy: there is no script for {robot.id}, only for {', '.join(scripts)}: give random")
    return scripts[namespace](robot)


def _push(robot: GymRobot) -> Choice:
    """Walk around the block, then push it towards the target, beside its middle while it must turn."""
    env: Any = robot.env

    def choose(_frame: GymFrame) -> Numbers:
        block, target = env.block, env.get_goal_pose_body(env.goal_pose)
        agent, middle = np.array(env.agent.position), np.array(block.local_to_world(block.center_of_gravity))
        way = np.array(target.local_to_world(block.center_of_gravity)) - middle
        turn = (target.angle - block.angle + math.pi) % (2 * math.pi) - math.pi
        ahead = way / max(np.hypot(*way), 1e-6)
        side = np.array([-ahead[1], ahead[0]])
        lever = np.clip(-_LEVER * 2.0 * turn, -_LEVER, _LEVER)
        along, across = (agent - middle) @ ahead, (agent - middle) @ side
        if along < 0 and abs(across - lever) < 20.0:
            pushed: Numbers = agent + min(_PUSH, np.hypot(*way) + 10.0 * abs(turn)) * ahead + (lever - across) * side
            return pushed
        start: Numbers = middle - _NEAR * ahead + lever * side
        here, there = (math.atan2(*(point - middle)[::-1]) for point in (agent, start))
        step = (there - here + math.pi) % (2 * math.pi) - math.pi
        if abs(step) < 0.3:
            return start
        angle = here + np.clip(step, -_WALK, _WALK)
        return middle + _NEAR * np.array([math.cos(angle), math.sin(angle)])

    return choose


def _sway(_robot: GymRobot) -> Choice:
    """Both arms sway about their start and open and close the grippers; no task is done."""
    start = np.zeros(0)

    def choose(frame: GymFrame) -> Numbers:
        nonlocal start
        start = np.array(frame.raw["agent_pos"]) if frame.step == 0 else start
        phase = math.pi * frame.seconds
        action = start + 0.2 * math.sin(phase)
        action[6::7] = 0.5 - 0.5 * math.cos(phase)
        return action

    return choose


def _expert(robot: GymRobot) -> Choice:
    """Meta-World's own script for the task."""
    from metaworld.policies import ENV_POLICY_MAP

    name = str(robot.arguments.get("env_name"))
    if name not in ENV_POLICY_MAP:
        raise ConfigError(f"policy: Meta-World has no script for {name}, only for {', '.join(ENV_POLICY_MAP)}")
    expert = ENV_POLICY_MAP[name]()
    return lambda frame: np.asarray(expert.get_action(frame.raw), np.float64)
