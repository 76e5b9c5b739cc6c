"""Forecasts of rate and age: the scheduler itself, run against the cost model in virtual time.

Whatever the scheduler does about depth, drain, deadlines and the row budget is in the forecast, because it is the
same scheduler. Time is an integer; nothing is measured here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from edgeflow.scheduler.pace import depths_of
from edgeflow.scheduler.plan import Frame, FrameRef, Leaving, Outcome, Pass
from edgeflow.scheduler.scheduler import Scheduler, SchedulerLimits
from edgeflow.types import Pace, PassTimes

MAX_PASSES = 800  # bounds the work of one forecast
FRAMES = 40  # of the slowest robot, in ticks of its own
FEW = 8  # frames in the whole run, fewer than which show no rate in half of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Robot:
    """A session as the forecast sees it.

    pace: as in Scheduler.open. period_ns: between frames; 0 = a fresh frame is always available.
    rows: L_P, the prefill length. deadline_ns: counted from a frame's arrival. offset_ns: when the first frame arrives.
    prepare_ns: of the host, before the pass that begins with its frame.
    """

    pace: Pace
    period_ns: int
    rows: int = 1
    deadline_ns: int = 0
    offset_ns: int = 0
    prepare_ns: int = 0


@dataclass(frozen=True, slots=True)
class Forecast:
    """Steady state of one robot: `actions` in `span_ns`, and the mean and greatest age of an action when it leaves."""

    actions: int
    span_ns: int
    age_ns: int
    worst_age_ns: int

    @property
    def fps(self) -> float:
        return self.actions * 1e9 / self.span_ns if self.span_ns else 0.0

    @property
    def period_ns(self) -> int:
        """Mean time between actions; 2**62 for a robot that gets none."""
        return self.span_ns // self.actions if self.actions else 1 << 62


class _Feed:
    """The frames of one robot: only the newest one that is due is offered."""

    def __init__(self, session: int, robot: Robot) -> None:
        self.session = session
        self.robot = robot
        self.stamps: dict[int, int] = {}
        self.skipped = 0  # frames before the one offered last that were replaced before a pass could begin
        self._seq = 0
        self._next_ns = robot.offset_ns

    def due(self, now_ns: int) -> Frame | None:
        if self._next_ns > now_ns:
            return None
        period = self.robot.period_ns
        self.skipped = (now_ns - self._next_ns) // period if period else 0
        stamp = now_ns if period == 0 else now_ns - (now_ns - self._next_ns) % period
        self._next_ns = stamp + period if period else now_ns + 1
        self._seq += 1
        self.stamps[self._seq] = stamp
        return Frame(FrameRef(self.session, 1, self._seq), self.robot.rows, stamp + self.robot.deadline_ns)

    @property
    def next_ns(self) -> int:
        return self._next_ns


@dataclass(slots=True)
class _Tally:
    """The actions of one robot, as (time, age), and the number of frames that newer ones replaced."""

    period_ns: int
    done: list[tuple[int, int]] = field(default_factory=list)
    superseded: int = 0

    def forecast(self, since_ns: int, until_ns: int) -> Forecast:
        if self.period_ns and len(self.done) + self.superseded < FEW:
            return self._of_few()
        counted = [(instant, age) for instant, age in self.done if instant > since_ns]
        if len(counted) < 2:
            return Forecast(len(counted), until_ns - since_ns, *[age for _, age in counted] * 2 or (0, 0))
        ages = [age for _, age in counted]
        return Forecast(len(ages) - 1, counted[-1][0] - counted[0][0], sum(ages) // len(ages), max(ages))

    def _of_few(self) -> Forecast:
        """The forecast of a robot whose period is long beside the run: the share of its frames that were acted on."""
        ages = [age for _, age in self.done]
        span_ns = max(len(ages) + self.superseded, 1) * self.period_ns
        return Forecast(len(ages), span_ns, sum(ages) // max(len(ages), 1), max(ages, default=0))


class _Device:
    """Runs passes in order. running: each that is launched and not collected, and its end."""

    def __init__(self, times: PassTimes) -> None:
        self.running: deque[tuple[Pass[FrameRef], int]] = deque()
        self._times = times
        self._free_ns = 0

    def launch(self, planned: Pass[FrameRef], now_ns: int) -> int:
        """When the host has launched the pass."""
        launched_ns = now_ns + self._times.launch_ns
        lasts_ns = self._times.pass_ns(len(planned.prefills), planned.decode_rows)
        self._free_ns = max(self._free_ns, launched_ns) + lasts_ns
        self.running.append((planned, self._free_ns))
        return launched_ns


def forecast(times: PassTimes, limits: SchedulerLimits, robots: Sequence[Robot]) -> list[Forecast]:
    """Each robot's steady state when all of them share the device.

    The second half of the run counts, or all of it where the run is short beside a robot's period.
    """
    scheduler = Scheduler(replace(limits, max_sessions=len(robots)))
    feeds = [_Feed(session, robot) for session, robot in enumerate(robots)]
    tallies = [_Tally(robot.period_ns) for robot in robots]
    for feed in feeds:
        scheduler.open(feed.session, 1, feed.robot.pace)
    device = _Device(times)
    now_ns, passes = 0, 0
    horizon_ns = _horizon_ns(times, robots)
    while now_ns < horizon_ns and passes < MAX_PASSES:
        for feed in feeds:
            frame = feed.due(now_ns)
            if frame is not None:
                left = scheduler.offer(frame)
                tallies[feed.session].superseded += len(left) + feed.skipped
        planned = scheduler.plan(now_ns)
        if planned is None and not device.running:
            waits = [feed.next_ns for feed in feeds]
            wake_ns = scheduler.wake_at_ns()
            now_ns = max(now_ns + 1, min(waits if wake_ns is None else [*waits, wake_ns]))
            continue
        if planned is not None:
            passes += 1
            prepare_ns = sum(robots[segment.sequence.session].prepare_ns for segment in planned.prefills)
            now_ns = device.launch(planned, now_ns + prepare_ns)
        while len(device.running) > (times.launch_ahead if planned else 0):
            ended, ended_ns = device.running.popleft()
            now_ns = max(now_ns, ended_ns)
            for departure in scheduler.commit(ended.number, [Outcome(each.sequence, (0,)) for each in ended.segments]):
                if departure.why is Leaving.DONE:
                    ref = departure.frame
                    tallies[ref.session].done.append((now_ns, now_ns - feeds[ref.session].stamps.pop(ref.seq)))
    return [tally.forecast(now_ns // 2, now_ns) for tally in tallies]


def by_depth(times: PassTimes, limits: SchedulerLimits, period_ns: int = 0, rows: int = 1) -> dict[int, Forecast]:
    """One robot alone, at every depth."""
    return {
        depth: forecast(times, limits, [Robot(pace=Pace(depth), period_ns=period_ns, rows=rows)])[0]
        for depth in depths_of(times.stages)
    }


def _horizon_ns(times: PassTimes, robots: Sequence[Robot]) -> int:
    tick_ns = times.stages * times.pass_ns(len(robots), 0)
    return FRAMES * max(tick_ns, *(robot.period_ns for robot in robots))
