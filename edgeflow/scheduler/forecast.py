"""Forecasts of rate and age: the scheduler itself, run against the cost model in virtual time.

Whatever the scheduler does about depth, drain, deadlines and the row budget is in the forecast, because it is the
same scheduler. Time is an integer; nothing is measured here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from edgeflow.contract import Pace, PassTimes, StageProgram
from edgeflow.scheduler.pace import paces_of
from edgeflow.scheduler.plan import Departure, Frame, FrameRef, Leaving, Outcome, Pass, Segment
from edgeflow.scheduler.scheduler import Scheduler, SchedulerLimits
from edgeflow.scheduler.verification import Draws, VerificationPasses

MAX_PASSES = 800  # bounds the work of one forecast
FRAMES = 40  # of the slowest robot, in its own ticks
DRAFTED = 500  # frames that a robot in mode speculative begins: enough to show its rate within a few per cent
FEW = 8  # frames in the whole run, fewer than which show no rate in half of it


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastSession:
    """A session as the forecast sees it."""

    pace: Pace
    """As in Scheduler.open."""
    period_ns: int
    """Time between frames; 0 = a fresh frame is always available."""
    rows: int = 1
    """L_P, the prefill length."""
    deadline_ns: int = 0
    """Time from a frame's arrival to when its action is due."""
    offset_ns: int = 0
    """When the first frame arrives."""
    prepare_ns: int = 0
    """Time that the host takes to prepare a frame, before the pass that begins with it."""
    patience_ns: int = 0
    """Time from a frame's arrival to when it is too old, 0 = never."""
    verification: VerificationPasses | None = None
    """The passes that drafted frames need; None = not known, so that each takes K."""
    program: StageProgram | None = None
    """As in Scheduler.open."""

    @property
    def assumed(self) -> bool:
        """True if its frames draft and it is not known how many passes they need."""
        return self.pace.speculation is not None and self.verification is None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerForecast:
    """The expected latency and rate of a session's answers."""

    age_ns: int
    """The greatest age of a frame when its answer is sent."""
    gap_ns: int
    """Time between two answers: the mean, or the longest where frames draft."""

    @classmethod
    def of(cls, seen: Forecast, pace: Pace) -> AnswerForecast:
        """With drafts, answers take 1 to K passes, so the next one may come as late as the oldest."""
        drafts = pace.speculation is not None and pace.speculation.max_passes != 1
        gap_ns = max(seen.period_ns, seen.worst_age_ns) if drafts else seen.period_ns
        return cls(age_ns=seen.worst_age_ns, gap_ns=gap_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Steady state of one robot: `actions` in `span_ns`, and the mean and greatest age of an action when it leaves."""

    actions: int
    span_ns: int
    age_ns: int
    worst_age_ns: int
    passes: int = 0
    """Passes of all actions."""
    overtaken: int = 0
    """Frames that drafted and left without an action."""
    assumed: bool = False
    """It is not known how many passes drafted frames need, so K is assumed."""

    @property
    def fps(self) -> float:
        return self.actions * 1e9 / self.span_ns if self.span_ns else 0.0

    @property
    def begun_fps(self) -> float:
        """Frames per second that begin; those that no newer one overtakes give actions."""
        return (self.actions + self.overtaken) * 1e9 / self.span_ns if self.span_ns else 0.0

    @property
    def period_ns(self) -> int:
        """Mean time between actions; 2**62 for a robot that gets none."""
        return self.span_ns // self.actions if self.actions else 1 << 62

    @property
    def passes_per_action(self) -> float:
        return self.passes / self.actions if self.actions else 0.0

    @property
    def overtaken_share(self) -> float:
        """The part of the frames begun that newer ones overtook."""
        return self.overtaken / max(self.actions + self.overtaken, 1)


@dataclass(slots=True)
class _Begun:
    """A frame that has had a pass."""

    needed: int
    """Passes until it is verified."""
    passes: int = 0
    """Passes so far."""


class _Feed:
    """The frames of one robot: only the newest one that is due is offered."""

    def __init__(self, session: int, robot: ForecastSession, stages: int) -> None:
        self.session = session
        self.robot = robot
        self._stages = stages
        self.skipped = 0  # frames before the one offered last that were replaced before a pass could begin
        self._stamps: dict[int, int] = {}
        self._begun: dict[int, _Begun] = {}
        self._draws = Draws(robot.verification, session) if robot.verification else None
        self._seq = 0
        self.next_ns = robot.offset_ns

    def due(self, now_ns: int) -> Frame | None:
        if self.next_ns > now_ns:
            return None
        robot, period = self.robot, self.robot.period_ns
        self.skipped = (now_ns - self.next_ns) // period if period else 0
        stamp = now_ns if period == 0 else now_ns - (now_ns - self.next_ns) % period
        self.next_ns = stamp + period if period else now_ns + 1
        self._seq += 1
        self._stamps[self._seq] = stamp
        expires_ns = stamp + robot.patience_ns if robot.patience_ns else 0
        return Frame(FrameRef(self.session, 1, self._seq), robot.rows, stamp + robot.deadline_ns, expires_ns)

    def outcome(self, segment: Segment[FrameRef]) -> Outcome[FrameRef]:
        """One token of a frame per pass, and all the rest in the pass that verifies it."""
        seq = segment.sequence.seq
        begun = self._begun.get(seq) or self._begin(seq)
        begun.passes += 1
        return Outcome(segment.sequence, (0,) * (segment.samples if begun.passes >= begun.needed else 1))

    def leave(self, seq: int) -> tuple[int, int]:
        """Forget a frame; its arrival and the passes that it had."""
        begun = self._begun.pop(seq, None)
        return self._stamps.pop(seq), begun.passes if begun else 0

    def _begin(self, seq: int) -> _Begun:
        self._begun[seq] = begun = _Begun(self._draws.take() if self._draws else self._stages)
        return begun


@dataclass(frozen=True, slots=True)
class _Action:
    """An action that left in the simulation."""

    at_ns: int
    """When it left."""
    age_ns: int
    passes: int


@dataclass(slots=True)
class _Tally:
    """The actions of one robot, when frames in flight were overtaken, and how many were replaced before they began."""

    period_ns: int
    done: list[_Action] = field(default_factory=list)
    overtaken_ns: list[int] = field(default_factory=list)
    superseded: int = 0

    def forecast(self, since_ns: int, until_ns: int) -> Forecast:
        frames = len(self.done) + len(self.overtaken_ns) + self.superseded
        if self.period_ns and frames < FEW:  # the period is long beside the run: the share that was acted on
            return _steady(self.done, max(frames, 1) * self.period_ns, len(self.overtaken_ns))
        counted = [action for action in self.done if action.at_ns > since_ns]
        if len(counted) < 2:
            return _steady(counted, until_ns - since_ns, self._overtaken(since_ns, until_ns))
        # The span lies between actions, so the first of them opens it and is not counted.
        first_ns, last_ns = counted[0].at_ns, counted[-1].at_ns
        return _steady(counted[1:], last_ns - first_ns, self._overtaken(first_ns, last_ns))

    def _overtaken(self, since_ns: int, until_ns: int) -> int:
        return sum(since_ns < at_ns <= until_ns for at_ns in self.overtaken_ns)


def _steady(done: list[_Action], span_ns: int, overtaken: int) -> Forecast:
    ages = [action.age_ns for action in done]
    passes = sum(action.passes for action in done)
    return Forecast(
        actions=len(done),
        span_ns=span_ns,
        age_ns=sum(ages) // max(len(ages), 1),
        worst_age_ns=max(ages, default=0),
        passes=passes,
        overtaken=overtaken,
    )


class _Device:
    """Runs passes in order. running: each that is launched and not collected, and its end."""

    def __init__(self, times: PassTimes) -> None:
        self.running: deque[tuple[Pass[FrameRef], int]] = deque()
        self._times = times
        self._free_ns = 0

    def launch(self, planned: Pass[FrameRef], now_ns: int) -> int:
        """Enqueue a pass; returns when the host has launched it."""
        launched_ns = now_ns + self._times.launch_ns
        lasts_ns = self._times.pass_ns(*planned.shape)
        self._free_ns = max(self._free_ns, launched_ns) + lasts_ns
        self.running.append((planned, self._free_ns))
        return launched_ns


class _Simulation:
    """The scheduler, the robots and the device, in virtual time."""

    def __init__(self, times: PassTimes, limits: SchedulerLimits, robots: Sequence[ForecastSession]) -> None:
        self.tallies = [_Tally(robot.period_ns) for robot in robots]
        self.now_ns = 0
        self._times = times
        self._device = _Device(times)
        programs = [_program(robot, limits) for robot in robots]
        stages = max(program.passes for program in programs)
        limits = replace(limits, stages=stages, max_sessions=len(robots))
        self._scheduler = Scheduler(limits, whole=times.whole_ns > 0)
        self._feeds = [
            _Feed(session, robot, program.passes)
            for session, (robot, program) in enumerate(zip(robots, programs, strict=True))
        ]
        for feed, program in zip(self._feeds, programs, strict=True):
            self._scheduler.open(feed.session, 1, feed.robot.pace, program)

    def turn(self) -> bool:
        """One turn of the worker's loop; True if it launched a pass."""
        self._offer()
        self._leave(self._scheduler.expire(self.now_ns))
        planned = self._scheduler.plan(self.now_ns)
        if planned is None and not self._device.running:
            wake_ns = self._scheduler.wake_at_ns(self.now_ns)
            waits = [*(feed.next_ns for feed in self._feeds), *([] if wake_ns is None else [wake_ns])]
            self.now_ns = max(self.now_ns + 1, min(waits))  # time always advances, also where a frame is due already
            return False
        if planned is not None:
            prepare_ns = sum(self._feeds[each.sequence.session].robot.prepare_ns for each in planned.prefills)
            self.now_ns = self._device.launch(planned, self.now_ns + prepare_ns)
        # As the worker: up to launch_ahead passes stay in flight, and all are collected once nothing can be launched.
        while len(self._device.running) > (self._times.launch_ahead if planned else 0):
            self._commit(*self._device.running.popleft())
        return planned is not None

    def _offer(self) -> None:
        for feed, tally in zip(self._feeds, self.tallies, strict=True):
            frame = feed.due(self.now_ns)
            if frame is not None:
                tally.superseded += len(self._scheduler.offer(frame)) + feed.skipped

    def _commit(self, ended: Pass[FrameRef], ended_ns: int) -> None:
        self.now_ns = max(self.now_ns, ended_ns)
        outcomes = [self._feeds[each.sequence.session].outcome(each) for each in ended.segments]
        self._leave(self._scheduler.commit(ended.number, outcomes, self.now_ns))

    def _leave(self, departures: list[Departure]) -> None:
        for departure in departures:
            session = departure.frame.session
            stamp_ns, passes = self._feeds[session].leave(departure.frame.seq)
            if departure.reason is Leaving.DONE:
                self.tallies[session].done.append(_Action(self.now_ns, self.now_ns - stamp_ns, passes))
            else:
                self.tallies[session].overtaken_ns.append(self.now_ns)


def forecast(times: PassTimes, limits: SchedulerLimits, robots: Sequence[ForecastSession]) -> tuple[Forecast, ...]:
    """Each robot's steady state when all of them share the device. The newest ones are cached.

    Only the second half of the run counts, with drafts all but the first eighth, and all of it where the run is short
    for a robot's period.
    """
    return _forecast(times, limits, tuple(robots))


@lru_cache(maxsize=256)
def _forecast(times: PassTimes, limits: SchedulerLimits, robots: tuple[ForecastSession, ...]) -> tuple[Forecast, ...]:
    run, passes = _Simulation(times, limits, robots), 0
    horizon_ns = _horizon_ns(times, limits, robots)
    while run.now_ns < horizon_ns and passes < MAX_PASSES:
        passes += run.turn()
    since_ns = run.now_ns // (8 if any(robot.pace.speculation for robot in robots) else 2)
    found = [tally.forecast(since_ns, run.now_ns) for tally in run.tallies]
    return tuple(replace(each, assumed=robot.assumed) for each, robot in zip(found, robots, strict=True))


def by_mode(
    times: PassTimes,
    limits: SchedulerLimits,
    verification: VerificationPasses | None = None,
    program: StageProgram | None = None,
) -> dict[str, Forecast]:
    """A single robot at full rate, in every mode and at every depth. verification, program: as in ForecastSession."""
    robot = ForecastSession(pace=Pace(), period_ns=0, verification=verification, program=program)
    served = _program(robot, limits)
    return {name: forecast(times, limits, [replace(robot, pace=pace)])[0] for name, pace in paces_of(served).items()}


def _program(robot: ForecastSession, limits: SchedulerLimits) -> StageProgram:
    return robot.program or StageProgram.tokens(limits.stages)


def _horizon_ns(times: PassTimes, limits: SchedulerLimits, robots: Sequence[ForecastSession]) -> int:
    """The time for FRAMES ticks of the slowest robot, if all passes took as long as one that all robots share."""
    programs = [_program(robot, limits) for robot in robots]
    rows = len(robots) * max(stage.decode_rows for program in programs for stage in program.stages)
    pass_ns = max(times.pass_ns(len(robots), 0), times.pass_ns(0, rows) if rows else 0)
    ticks = [
        FRAMES * max(program.passes * pass_ns, robot.period_ns) for program, robot in zip(programs, robots, strict=True)
    ]
    drafts = [DRAFTED * max(pass_ns, robot.period_ns) for robot in robots if robot.pace.speculation]
    return max(ticks + drafts)
