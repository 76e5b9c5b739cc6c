"""Robots with the SDK, each in its own process: they report every change between acting and holding."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait

from benchmarks.chaos.robots import KillableProcess, client, picture, told_to_stop
from edgeflow_client.actions import Directive
from edgeflow_client.errors import EdgeflowError
from edgeflow_client.robot import RobotClient

PATIENCE_S = 120.0
PIPE_NS = 50_000_000  # everything sent so far has arrived by then


@dataclass(frozen=True, slots=True)
class Change:
    """A change of command (act, hold or stop) at at_ns on the monotonic clock."""

    at_ns: int
    command: str
    reason: str
    late_ns: int
    """Time from the end of the last action's validity to a change that follows an action; negative = before it."""


@dataclass(frozen=True, slots=True)
class RobotTotals:
    """Totals of a robot."""

    sessions: tuple[int, ...]
    """All of its sessions."""
    reconnects: int
    asked: int
    overdue: int
    """How often `latest` returned an action past its validity."""


class DirectiveWatch:
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
    """Push frames at a rate, call `latest` every poll_s, and `reset` when necessary, until the benchmark sends a
    message.
    """
    watch, image = DirectiveWatch(link), picture()
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
        watch.send(RobotTotals(tuple(sessions), robot.statistics().reconnects, asked, overdue))


def _reset(robot: RobotClient) -> None:
    with contextlib.suppress(EdgeflowError):  # the service does not take the session back
        robot.reset()


def _push(robot: RobotClient, image: bytes) -> None:
    try:
        robot.push(image)
    except EdgeflowError:
        time.sleep(0.01)  # the service does not take the session back


class Fleet:
    """A fleet of robots: entering the context waits until all act; leaving it ends the processes."""

    def __init__(self, address: str, robots: int, rate_hz: float, poll_s: float) -> None:
        self._robots = [KillableProcess(sdk_robot, address, rate_hz, poll_s) for _ in range(robots)]
        self._said: list[list[Change]] = [[] for _ in self._robots]

    def __enter__(self) -> Fleet:
        try:
            self.wait("act", 0)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for robot in self._robots:
            robot.close()

    def wait(self, command: str, since_ns: int) -> list[Change]:
        """Wait until every robot does this, at since_ns or later, and return the changes; TimeoutError."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            self._receive()
            found = [first(said, command, since_ns) for said in self._said]
            changes = [each for each in found if each is not None]
            if len(changes) == len(found) and time.monotonic_ns() > since_ns + PIPE_NS:
                return changes
        raise TimeoutError(f"not every robot reached {command} within {PATIENCE_S:g} s")

    def reasons(self) -> list[str]:
        """The reasons of all HOLDs and STOPs so far, those before a robot's first action left out."""
        self._receive()
        found = []
        for said in self._said:
            acted = next((index for index, change in enumerate(said) if change.command == "act"), len(said))
            found += [change.reason for change in said[acted:] if change.command != "act"]
        return found

    def finish(self) -> list[RobotTotals]:
        """End all robots."""
        for robot in self._robots:
            robot.link.send("stop")
        return [_summary(robot) for robot in self._robots]

    def _receive(self) -> None:
        """Receive all pending messages, waiting briefly for more."""
        links = {robot.link: said for robot, said in zip(self._robots, self._said, strict=True)}
        while ready := wait(list(links), PIPE_NS / 1e9):
            for link, said in links.items():
                if link in ready:
                    said.append(link.recv())


def first(said: Sequence[Change], command: str, since_ns: int) -> Change | None:
    """The change by which this command was in force at since_ns, else the first such change after it; or None."""
    before = [index for index, change in enumerate(said) if change.at_ns <= since_ns]
    return next((change for change in said[max(before, default=0) :] if change.command == command), None)


def _summary(robot: KillableProcess) -> RobotTotals:
    while not isinstance(said := robot.receive(), RobotTotals):
        pass
    return said
