"""Several SDK robots, each in its own process, and the current state of each."""

from __future__ import annotations

import time
from collections.abc import Sequence
from multiprocessing.connection import wait

from benchmarks.chaos.robots import RobotProcess
from benchmarks.chaos.sdk_robot import Change, Summary, sdk_robot

PATIENCE_S = 120.0
PIPE_NS = 50_000_000  # what was said until now is heard by then


class Fleet:
    """A fleet of robots: entering the context waits until all act; leaving it ends the processes."""

    def __init__(self, address: str, robots: int, rate_hz: float, poll_s: float) -> None:
        self._robots = [RobotProcess(sdk_robot, address, rate_hz, poll_s) for _ in range(robots)]
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
            self._hear()
            found = [first(said, command, since_ns) for said in self._said]
            changes = [each for each in found if each is not None]
            if len(changes) == len(found) and time.monotonic_ns() > since_ns + PIPE_NS:
                return changes
        raise TimeoutError(f"not every robot reached {command} within {PATIENCE_S:g} s")

    def reasons(self) -> list[str]:
        """The reasons of all HOLDs and STOPs so far, those before a robot's first action left out."""
        self._hear()
        found = []
        for said in self._said:
            acted = next((index for index, change in enumerate(said) if change.command == "act"), len(said))
            found += [change.reason for change in said[acted:] if change.command != "act"]
        return found

    def finish(self) -> list[Summary]:
        """End all robots."""
        for robot in self._robots:
            robot.link.send("stop")
        return [_summary(robot) for robot in self._robots]

    def _hear(self) -> None:
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


def _summary(robot: RobotProcess) -> Summary:
    while not isinstance(said := robot.hear(), Summary):
        pass
    return said
