"""A robot with the SDK in its own process, which reports every change between acting and holding."""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection

from benchmarks.chaos.robots import client, picture, told_to_stop
from edgeflow_client.actions import Directive
from edgeflow_client.errors import EdgeflowError
from edgeflow_client.robot import RobotClient


@dataclass(frozen=True, slots=True)
class Change:
    """A change of command (act, hold or stop) at at_ns on the monotonic clock.

    late_ns: time from the end of the last action's validity to a change that follows an action; negative = before it.
    """

    at_ns: int
    command: str
    reason: str
    late_ns: int


@dataclass(frozen=True, slots=True)
class Summary:
    """Totals of a robot. overdue: times that `latest` returned an action past its validity. sessions: all it had."""

    sessions: tuple[int, ...]
    reconnects: int
    asked: int
    overdue: int


class Watch:
    """Callback for the SDK's directives that reports changes of the command."""

    def __init__(self, link: Connection) -> None:
        self._link = link
        self._lock = threading.Lock()
        self._command = ""
        self._valid_until_ns = 0

    def __call__(self, directive: Directive) -> None:
        now_ns = time.monotonic_ns()
        command = directive.command.value.lower()
        if directive.reason == "CLOSED":  # by ourselves
            return
        if command != self._command:
            self._command = command
            self.send(Change(now_ns, command, directive.reason, now_ns - self._valid_until_ns))
        if directive.action is not None:
            self._valid_until_ns = directive.action.valid_until_ns

    def send(self, message: object) -> None:
        """Send a message; safe to call from any thread."""
        with self._lock:
            self._link.send(message)


def sdk_robot(link: Connection, address: str, rate_hz: float, poll_s: float = 0.004) -> None:
    """Push frames at a rate, call `latest` every poll_s, and `reset` when it is needed, until the benchmark sends a
    message.
    """
    watch, image = Watch(link), picture()
    sessions: list[int] = []
    asked = overdue = 0
    with client(address, rate_hz, on_action=watch) as robot:
        due = time.monotonic()
        while not told_to_stop(link, poll_s):
            if time.monotonic() >= due:
                due += 1 / rate_hz
                _push(robot, image)
            before_ns = time.monotonic_ns()
            directive = robot.latest()
            action = directive.action
            asked += 1
            overdue += action is not None and before_ns >= action.valid_until_ns
            if directive.needs_reset:
                _reset(robot)
            if robot.opened.session not in sessions:
                sessions.append(robot.opened.session)
        watch.send(Summary(tuple(sessions), robot.statistics().reconnects, asked, overdue))


def _reset(robot: RobotClient) -> None:
    with contextlib.suppress(EdgeflowError):  # the service does not take the session back
        robot.reset()


def _push(robot: RobotClient, image: bytes) -> None:
    try:
        robot.push(image)
    except EdgeflowError:
        time.sleep(0.01)  # the service does not take the session back
