"""Robots beside something that should not disturb them: blocks of time, the robots' actions in them, and
the verdict.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

from benchmarks.chaos.robots import RawRobot, at_work, client, picture, told_to_stop
from benchmarks.chaos.rules import BoundedFigure, percentile
from edgeflow_client.actions import Directive
from edgeflow_client.errors import EdgeflowError
from edgeflow_client.rpc import control_pb2 as pb
from edgeflow_client.types import Command

QUIET = "quiet"
LEAST_SHARE = 0.98  # of the undisturbed rate


@dataclass(frozen=True, slots=True)
class TimeBlock:
    """A block of time, in nanoseconds of the monotonic clock."""

    start_ns: int
    end_ns: int
    kind: str
    """QUIET, or the name of the disturbance."""


@dataclass(slots=True)
class Spans:
    """The blocks of a scenario."""

    all: list[TimeBlock] = field(default_factory=list)

    @contextmanager
    def during(self, kind: str) -> Iterator[None]:
        """Record the block that passes in this context."""
        start_ns = time.monotonic_ns()
        yield
        self.all.append(TimeBlock(start_ns, time.monotonic_ns(), kind))

    def wait(self, kind: str, seconds: float, each_turn: Callable[[], object] = lambda: None) -> None:
        """Let a block pass, calling `each_turn` several times per second."""
        with self.during(kind):
            until = time.monotonic() + seconds
            while (left := until - time.monotonic()) > 0:
                each_turn()
                time.sleep(min(left, 0.2))


@dataclass(slots=True)
class RobotHistory:
    """The history of a robot."""

    actions: list[tuple[int, int]] = field(default_factory=list)
    """(received, age) of each action in nanoseconds."""
    holds: list[tuple[int, str]] = field(default_factory=list)
    """(time, reason) of each HOLD."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars:
    """Limits on how much robots may be disturbed."""

    least_share: float = LEAST_SHARE
    rise_ms: float = 0.0
    rise_percent: float = 0.0
    """Both: for the 99th percentile of the age; the larger limit applies."""

    def most_ms(self, undisturbed_ms: float) -> float:
        """The highest permitted rise of the p99, given the undisturbed one."""
        return max(self.rise_ms, undisturbed_ms * self.rise_percent / 100)


def within(at_ns: int, spans: Iterable[TimeBlock], kind: str) -> bool:
    """True if this moment is in a block of this kind."""
    return any(span.start_ns <= at_ns < span.end_ns for span in spans if span.kind == kind)


def ages_ms(tracks: Sequence[RobotHistory], spans: Sequence[TimeBlock], kind: str) -> list[float]:
    """The ages of all actions received in blocks of this kind, in milliseconds."""
    return [age / 1e6 for track in tracks for at, age in track.actions if within(at, spans, kind)]


def rate_hz(tracks: Sequence[RobotHistory], spans: Sequence[TimeBlock], kind: str) -> float:
    """Actions per second of the slowest robot in blocks of this kind; NaN without such a block."""
    length_s = sum(span.end_ns - span.start_ns for span in spans if span.kind == kind) / 1e9
    return min(len(ages_ms([track], spans, kind)) / length_s for track in tracks) if length_s else float("nan")


def holds(tracks: Sequence[RobotHistory], spans: Sequence[TimeBlock], kind: str) -> list[str]:
    """The reasons of all HOLDs that began in blocks of this kind."""
    return [reason for track in tracks for at, reason in track.holds if within(at, spans, kind)]


def verdict(
    who: str, tracks: Sequence[RobotHistory], spans: Sequence[TimeBlock], kind: str, bars: Bars
) -> list[BoundedFigure]:
    """The rows that compare robots in blocks of this kind with the quiet ones."""
    quiet, disturbed = (rate_hz(tracks, spans, each) for each in (QUIET, kind))
    before, beside = (percentile(ages_ms(tracks, spans, each), 99) for each in (QUIET, kind))
    lost = 100 * (1 - disturbed / quiet) if quiet else float("nan")
    return [
        BoundedFigure(f"{who}: rate lost beside {kind}", lost, "%", 100 * (1 - bars.least_share)),
        BoundedFigure(f"{who}: age p99 beside {kind}", beside, "ms"),
        BoundedFigure(f"{who}: rise of the age's p99 beside {kind}", beside - before, "ms", bars.most_ms(before)),
    ]


def undisturbed(who: str, tracks: Sequence[RobotHistory], spans: Sequence[TimeBlock]) -> list[BoundedFigure]:
    """The rows of the quiet blocks."""
    return [
        BoundedFigure(f"{who}: rate, quiet", rate_hz(tracks, spans, QUIET), "/s"),
        BoundedFigure(f"{who}: age p99, quiet", percentile(ages_ms(tracks, spans, QUIET), 99), "ms"),
    ]


class Observer:
    """The SDK's callback that keeps a Track."""

    def __init__(self, track: RobotHistory) -> None:
        self._track = track
        self._acting = False

    def __call__(self, directive: Directive) -> None:
        if directive.action is not None:
            action = directive.action
            self._track.actions.append((action.received_ns, action.age_ns))
        elif self._acting and directive.command is not Command.ACT and directive.reason != "CLOSED":
            self._track.holds.append((time.monotonic_ns(), directive.reason))
        self._acting = directive.command is Command.ACT


def bystanders(link: Connection, address: str, count: int, rate_hz: float, mode: pb.Mode = pb.MODE_PIPELINED) -> None:
    """Work of a process: plain robots; it reports when all act, and their Tracks at the end."""
    robots = [RawRobot(address, rate_hz, mode=mode) for _ in range(count)]
    at_work(link, robots)
    link.send([RobotHistory(robot.ages, robot.holds) for robot in robots])


def sdk_track(link: Connection, address: str, rate_hz: float) -> None:
    """Work of a process: a robot with the SDK; it reports when it acts, and its Track at the end."""
    track, image = RobotHistory(), picture()
    period_s = 1 / rate_hz
    with client(address, rate_hz, on_action=Observer(track)) as robot:
        due, reported = time.monotonic(), False
        while not told_to_stop(link, max(due - time.monotonic(), 0)):
            due = max(due + period_s, time.monotonic())
            with suppress(EdgeflowError):  # a robot in HOLD keeps sending frames
                robot.push(image)
                if robot.latest().needs_reset:
                    robot.reset()
            if track.actions and not reported:
                link.send("acting")
                reported = True
        link.send(track)
