"""The parts of a robot in simulated time: a body that executes actions, answers in transit, and ticks."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np

from edgeflow.ipc.messages import FrameDropped, FrameResult
from edgeflow.lab.demo.simulated.episodes import HELD, Acted, Commanded
from edgeflow.lab.demo.world.sim import RobotSim
from edgeflow.lab.demo.world.task import EpisodeOutcome
from edgeflow_client.pose import Pose, Vector

TICK_NS: Final = 10_000_000  # between two checks of what to execute


class VirtualRobot(Protocol):
    """A robot that the virtual service drives."""

    @property
    def late(self) -> int:
        """Number of chunks that came too late to continue the chunk in execution as planned."""
        ...

    @property
    def late_played(self) -> int:
        """Number of late chunks that were executed after it."""
        ...

    @property
    def next_event_ns(self) -> int:
        """When `act` is due next, since the start of the episode."""
        ...

    def act(self) -> None:
        """Do what is due now."""
        ...

    def receive(self, message: FrameResult | FrameDropped) -> None:
        """An answer, or the end of a frame without one."""
        ...


@dataclass(frozen=True, slots=True)
class Delay:
    """A delay between a frame and its action, uniform in mean_ns +- jitter_ns."""

    mean_ns: int
    jitter_ns: int = 0
    seed: int = 0
    """Seed of the random jitter."""


class SimulatedBody:
    """A simulated robot whose time the caller advances.

    now_ns: time since the start of the episode. acted: the executed answers. commands: their executed rows, and HOLD
    after the first. held_ns: time for which the SDK ordered HOLD after the first action.
    """

    def __init__(self, sim: RobotSim) -> None:
        self.sim = sim
        self.now_ns = 0
        self.acted: list[Acted] = []
        self.commands: list[Commanded] = []
        self.held_ns = 0
        self._holds = False
        self._start_s = sim.time

    @property
    def running(self) -> bool:
        return self.sim.outcome is EpisodeOutcome.RUNNING

    @property
    def jumped_ns(self) -> int | None:
        """When the object jumped; None before."""
        return None if self.sim.jump is None else round((self.sim.jump.at_s - self._start_s) * 1e9)

    def move_to(self, instant_ns: int) -> None:
        """Advance physics to an instant; an instant in the past changes nothing."""
        self.sim.step(max(0.0, self._start_s + instant_ns / 1e9 - self.sim.time))
        self.held_ns += self._holds * max(instant_ns - self.now_ns, 0)
        self.now_ns = max(self.now_ns, instant_ns)

    def hold(self, *, first: bool) -> None:
        """Hold the position. first: an action was executed until now."""
        self._holds = self._holds or first
        before = self.sim.goal().position
        self.sim.hold()
        if first:
            self._note(HELD, before)

    def command(self, goal: Pose, gripper: float, *, captured_ns: int) -> None:
        """Execute a row of the answer to a frame."""
        self._holds = False
        before = self.sim.goal().position
        self.sim.command(goal, gripper)
        self._note(captured_ns, before)

    def note(self, *, captured_ns: int, passes: int, settled: int, execution: str = "") -> None:
        """Note an answer that is executed from now on."""
        acted = Acted(
            captured_ns=captured_ns, arrived_ns=self.now_ns, passes=passes, settled=settled, execution=execution
        )
        self.acted.append(acted)

    def _note(self, captured_ns: int, before: Vector) -> None:
        """Note the present command. before: the position commanded before it."""
        x, y, z = (float(each) for each in self.sim.goal().position)
        towards = self._towards(before)
        self.commands.append(Commanded(at_ns=self.now_ns, captured_ns=captured_ns, x=x, y=y, z=z, towards=towards))

    def _towards(self, before: Vector) -> bool:
        """True if the command leads nearer to the place to which the object jumped than to the one before."""
        jump, now = self.sim.jump, self.sim.goal().position
        if jump is None:
            return False
        new = self.sim.grasps()[self.sim.task.target].position
        return _nearer(before, now, new) > _nearer(before, now, new - jump.by)


def _nearer(before: Vector, now: Vector, place: Vector) -> float:
    """How much nearer to a place one position is than the one before it, metres."""
    return math.dist(before, place) - math.dist(now, place)


class DelayedAnswers:
    """The answers in transit to a robot.

    delay: None = answers arrive at once.
    """

    def __init__(self, delay: Delay | None) -> None:
        self._delay = delay
        self._draws = np.random.default_rng(delay.seed if delay else 0)
        self._waiting: list[tuple[int, FrameResult]] = []

    def delays(self, message: FrameResult, *, captured_ns: int, now_ns: int) -> bool:
        """Keep an answer until its delay is over; False if it arrives now."""
        if self._delay is None:
            return False
        jitter_ns = round(self._delay.jitter_ns * self._draws.uniform(-1.0, 1.0))
        self._waiting.append((max(captured_ns + self._delay.mean_ns + jitter_ns, now_ns), message))
        return True

    def arrived(self, now_ns: int) -> list[FrameResult]:
        """The answers whose delay is over, in the order in which they were sent; each is returned once."""
        due = [message for due_ns, message in self._waiting if due_ns <= now_ns]
        self._waiting = [each for each in self._waiting if each[0] > now_ns]
        return due

    @property
    def arrivals_ns(self) -> list[int]:
        """The arrival times of the answers in transit."""
        return [due_ns for due_ns, _ in self._waiting]


@dataclass(slots=True)
class Ticks:
    """A clock that ticks every TICK_NS."""

    _passed: int = field(default=0, init=False)

    @property
    def next_ns(self) -> int:
        return (self._passed + 1) * TICK_NS

    def due(self, now_ns: int) -> bool:
        """True once per elapsed tick."""
        come = self.next_ns <= now_ns
        self._passed += come
        return come
