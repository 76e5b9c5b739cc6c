"""Robots on a device in virtual time: the scheduler with turns and gaps, as the worker's loop drives it."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle

from edgeflow.contract import Pace, PassTimes, StageProgram
from edgeflow.scheduler.cost import CostModel, Gaps, PassSample
from edgeflow.scheduler.plan import Departure, Frame, FrameRef, Leaving, Outcome, Pass
from edgeflow.scheduler.scheduler import Scheduler, SchedulerLimits
from edgeflow.scheduler.turns import EarlyFrames, TokenBucket

ROWS = 10
NEVER = 1 << 60


@dataclass(frozen=True, kw_only=True)
class EarlySender:
    """A robot. arrivals: when its frames come; () = the next one `after_ns` after each answer."""

    period_ns: int
    """As declared; NEVER = it declared so little, and has used it, that all of its frames are early."""
    arrivals: Sequence[int] = ()
    after_ns: int = 0
    begins_ns: int = 0
    pace: Pace = Pace()  # noqa: RUF009 - immutable
    waits_ns: int = 0
    """As Frame.waits_until_ns, from its arrival."""


@dataclass
class Simulated:
    """What came of the robots' frames."""

    answered: dict[int, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    """Of each robot: arrival and end of its frames with an action."""
    begun: list[tuple[FrameRef, int]] = field(default_factory=list)
    """Frames that began, with the newest that had come by then."""
    left: list[Departure] = field(default_factory=list)
    idle_ns: int = 0
    """Time in which the device ran nothing although a frame waited."""

    def latencies(self, robot: int) -> dict[int, int]:
        """The latency of each frame, by its arrival."""
        return {arrived_ns: ended_ns - arrived_ns for arrived_ns, ended_ns in self.answered[robot]}


def simulate(
    times: PassTimes,
    robots: Sequence[EarlySender],
    until_ns: int,
    *,
    program: StageProgram,
    turns: bool = True,
    row_budget: int = 1024,
    drain_ns: int = 0,
    percent: Sequence[int] = (100,),
) -> Simulated:
    """Serve robots. turns: False = every frame is due, as if each robot had declared what it sends. percent: the time
    of each pass, of what it is said to be; repeated.
    """
    limits = SchedulerLimits(program.passes, len(robots), row_budget, drain_ns)
    return _Bench(times, robots, program, turns, limits, cycle(percent)).run(until_ns)


class _Bench:
    def __init__(
        self,
        times: PassTimes,
        robots: Sequence[EarlySender],
        program: StageProgram,
        turns: bool,
        limits: SchedulerLimits,
        percent: Iterator[int],
    ) -> None:
        self.found = Simulated()
        self._times = times
        self._percent = percent
        self._robots = robots
        self._now_ns = self._free_ns = 0
        self._running: deque[tuple[Pass[FrameRef], int, int]] = deque()
        self._gaps = Gaps(NEVER)
        self._scheduler = Scheduler(limits, whole=times.whole_ns > 0)
        self._early = self._scheduler.early = EarlyFrames(self._gaps, CostModel(times))
        self._next: list[deque[int]] = []
        self._arrived: dict[FrameRef, int] = {}
        self._newest: dict[int, FrameRef] = {}
        for session, robot in enumerate(robots):
            bucket = TokenBucket.of_period(robot.period_ns, 0)
            if robot.period_ns == NEVER:
                bucket.empty(0)
            self._scheduler.open(session, 1, robot.pace, program, bucket if turns else None)
            self._gaps.open(session, robot.period_ns)
            self._next.append(deque(robot.arrivals or [robot.begins_ns]))

    def run(self, until_ns: int) -> Simulated:
        while self._now_ns < until_ns:
            self._turn()
        return self.found

    def _turn(self) -> None:
        self._offer()
        self._leave(self._scheduler.expire(self._now_ns))
        begins = self._scheduler.next_frames(self._now_ns)
        planned = self._scheduler.plan(self._now_ns)
        if planned is not None:
            self.found.begun += [(ref, self._newest[ref.session]) for ref in begins]
            self._launch(planned)
        while len(self._running) > (self._times.launch_ahead if planned else 0):
            self._commit(*self._running.popleft())
            planned = planned or Pass(0, ())
        if not self._running:
            self._gaps.finished()
        if planned is None:
            self._sleep()

    def _sleep(self) -> None:
        if any(arrivals and arrivals[0] <= self._now_ns for arrivals in self._next):
            return  # a frame that left made a robot send the next one at once
        wake_ns = self._scheduler.wake_at_ns(self._now_ns)
        waits = [arrivals[0] for arrivals in self._next if arrivals] + ([] if wake_ns is None else [wake_ns])
        then_ns = max(min(waits, default=NEVER), self._now_ns)
        assert then_ns > self._now_ns, "the loop would spin"
        if any(ref not in {each.frame for each in self.found.left} for ref in self._newest.values()):
            self.found.idle_ns += min(then_ns, NEVER) - self._now_ns
        self._now_ns = then_ns

    def _offer(self) -> None:
        for session, (robot, arrivals) in enumerate(zip(self._robots, self._next, strict=True)):
            while arrivals and arrivals[0] <= self._now_ns:
                arrived_ns = arrivals.popleft()
                ref = FrameRef(session, 1, len(self._arrived) + 1)
                self._arrived[ref], self._newest[session] = arrived_ns, ref
                self._gaps.arrived(session, arrived_ns)
                waits_ns = arrived_ns + robot.waits_ns if robot.waits_ns else 0
                self._leave(self._scheduler.offer(Frame(ref, ROWS, arrived_ns, waits_until_ns=waits_ns)))

    def _launch(self, planned: Pass[FrameRef]) -> None:
        self._now_ns += self._times.launch_ns
        expected_ns = self._times.pass_ns(*planned.shape)
        lasts_ns = expected_ns * next(self._percent) // 100
        self._free_ns = max(self._free_ns, self._now_ns) + lasts_ns
        self._running.append((planned, lasts_ns, self._free_ns))
        self._gaps.launched(self._now_ns, expected_ns)

    def _commit(self, planned: Pass[FrameRef], lasts_ns: int, ended_ns: int) -> None:
        self._now_ns = max(self._now_ns, ended_ns)
        prefills, decodes, whole = planned.shape
        self._early.observe(PassSample(prefills, decodes, lasts_ns, whole=whole), self._now_ns)
        outcomes = [Outcome(segment.sequence, (0,)) for segment in planned.segments]
        self._leave(self._scheduler.commit(planned.number, outcomes, self._now_ns))

    def _leave(self, departures: list[Departure]) -> None:
        self.found.left += departures
        for departure in departures:
            session = departure.frame.session
            if departure.reason is Leaving.DONE:
                self.found.answered[session].append((self._arrived[departure.frame], self._now_ns))
            if not self._robots[session].arrivals and departure.frame == self._newest[session]:
                self._next[session].append(self._now_ns + self._robots[session].after_ns)
