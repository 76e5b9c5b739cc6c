"""Admission: which sessions may share the device, and at which pace, decided by forecasts before anything is sent.

Admission keeps a part of the device free (20 % by default, so pass times may grow by a quarter): with such pass times
every open session must still get its promised rate, and the new one the rate it would have by itself. A session that is
alone is always admitted and gets what the device can do. Where frames draft, the promise is that they have their passes
at this rate: how many of them are overtaken depends on what the camera sees.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from edgeflow.config.service import ServiceConfig
from edgeflow.contract import Pace, PassTimes, Speculation, StageProgram
from edgeflow.ipc.messages import Pong, WorkerReady
from edgeflow.scheduler.cost import CostModel, PassSample
from edgeflow.scheduler.forecast import AnswerForecast, Forecast, ForecastSession, by_mode, forecast
from edgeflow.scheduler.pace import auto_pace, pace_of, paces_of, served_pace
from edgeflow.scheduler.scheduler import SchedulerLimits
from edgeflow.scheduler.session import Shift
from edgeflow.scheduler.verification import VerificationModel, VerificationSample
from edgeflow.service.observation.requests import OpenRequest
from edgeflow.service.sessions.capacity import Decoders, per_second, prepare_ns
from edgeflow_client.errors import RETRY_AFTER_MS, FailedPrecondition, InvalidArgument, ResourceExhausted
from edgeflow_client.reasons import Reason
from edgeflow_client.types import MOST_TOLERANCE_BINS, CameraSpec, Mode

LONGEST_GAP_NS = 10_000_000_000  # between answers, in a forecast
SAME_RATE = 0.98  # of a promised rate counts as kept
OVERHEAD_NS = 3_000_000  # the most that control adds to the latency (benchmarks/service_overhead.py)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionPlan:
    """The mode, pace and forecast of a session."""

    mode: Mode
    """The requested mode."""
    pace: Pace
    forecast: Forecast
    """The forecast beside the sessions that were open when it was planned."""
    robot: ForecastSession
    program: StageProgram
    """The stages of its answers."""
    cameras: tuple[CameraSpec, ...]
    """The cameras that the policy gets."""
    decode_ns: int
    """Expected time of decoding a frame of these cameras."""

    @property
    def stages(self) -> int:
        """K: passes of a frame, and tokens of an answer in tokens."""
        return self.program.passes

    @property
    def worst_age_ns(self) -> int:
        """The largest forecast age of its actions when they are sent."""
        return self.forecast.worst_age_ns + self._beside_ns

    @property
    def mean_age_ns(self) -> int:
        """The mean forecast age of its actions when they are sent."""
        return self.forecast.age_ns + self._beside_ns

    @property
    def decode_load_ns(self) -> int:
        """Time per second that it takes from the decoders."""
        return per_second(self.decode_ns, self.robot.period_ns)

    @property
    def _beside_ns(self) -> int:
        """The part of an action's age that forecasts do not contain."""
        return self.decode_ns + OVERHEAD_NS


@dataclass(frozen=True, slots=True, kw_only=True)
class _PlannedSession:
    """A session to be planned."""

    mode: Mode
    program: StageProgram
    cameras: tuple[CameraSpec, ...]
    limit_ns: int | None
    """The age limit of its actions."""
    others: tuple[SessionPlan, ...]
    """The plans of the open sessions."""


class Admission:
    """The pass times and plans of the open sessions. `plan` is pure and may run in a thread."""

    def __init__(self, config: ServiceConfig, decoders: Decoders) -> None:
        self._config = config
        self._decoders = decoders
        self._cost: CostModel[PassTimes] | None = None
        self._limits = SchedulerLimits(1, 1, 1, 0)
        self._prefill_rows = 1
        self._bins = False
        self._default = StageProgram.tokens(1)
        self._programs: dict[str, StageProgram] = {}
        self._verification = VerificationModel()
        self._prepares = self._continues = False
        self._reach_ns = 0  # time from a frame's capture to the moment of its answer's last action
        self._plans: dict[int, SessionPlan] = {}

    def worker_ready(self, ready: WorkerReady) -> None:
        """Take the pass times of a new worker."""
        config = self._config
        self._cost = CostModel(ready.pass_times)
        self._prefill_rows = ready.prefill_rows
        self._bins = ready.bins
        self._reach_ns = ready.schema.reach_ns
        self._continues = ready.continues
        self._programs = dict(zip(ready.unnorm_keys, ready.programs, strict=False))
        self._default = next(iter(ready.programs), StageProgram.tokens(ready.pass_times.stages))
        self._default = self._programs.get(config.unnorm_key, self._default)
        on_cpu = ready.device.startswith("cpu")
        self._prepares = config.preprocess == "host" or (config.preprocess == "auto" and on_cpu)
        self._limits = SchedulerLimits(
            max(program.passes for program in (self._default, *ready.programs)),
            ready.max_sessions,
            ready.row_budget,
            config.drain_after_ms * 1_000_000,
            Shift(config.shift),
        )

    @property
    def pass_times(self) -> PassTimes | None:
        """The pass times measured last, or None."""
        return self._cost.times if self._cost is not None else None

    def observe(self, pong: Pong, now_ns: int) -> bool:
        """Take the worker's latest passes and frames; True if they differ so much that the forecasts changed."""
        if self._cost is None:
            return False
        passes = zip(pong.pass_prefills, pong.pass_decodes, pong.pass_ns, pong.pass_whole, strict=True)
        frames = zip(pong.settling_stages, pong.settling_bins, pong.settling_passes, pong.settling_done, strict=True)
        samples = [PassSample(prefills, decodes, ns, whole=whole) for prefills, decodes, ns, whole in passes]
        drifted = self._cost.observe(samples, now_ns)
        verified = self._verification.observe(VerificationSample(*frame) for frame in frames)
        return drifted or verified

    def modes(self) -> dict[str, Forecast]:
        """The forecast per mode for one robot alone at full rate, whose answers are those of the default key."""
        verification = self._verification.of(self._default.passes, Speculation().tolerance_bins)
        return by_mode(self._times, self._limits, verification, self._default)

    def plan(self, request: OpenRequest, others: tuple[SessionPlan, ...]) -> SessionPlan:
        """Plan one more session; a typed RequestError if it cannot be served."""
        asked = _PlannedSession(
            mode=self._mode(request),
            program=self._programs.get(request.unnorm_key, self._default),
            cameras=_policy_cameras(request),
            limit_ns=request.max_action_age_ns,
            others=others,
        )
        robot = ForecastSession(
            pace=Pace(),
            period_ns=request.control_period_ns,
            rows=self._prefill_rows,
            deadline_ns=request.max_action_age_ns or request.control_period_ns,
            prepare_ns=prepare_ns(asked.cameras) if self._prepares else 0,
            program=asked.program,
        )
        self._check_decoding(request, robot, others)
        robots = [self._at_pace(robot, pace, asked) for pace in self._paces(asked, request)]
        plans = [self._planned(each, asked) for each in robots]
        if asked.mode is Mode.AUTO and asked.limit_ns is not None:
            plans = self._by_age(plans, asked, asked.limit_ns)
        fitting = [plan for plan in plans if self._fits(plan, others)]
        if not fitting:
            raise ResourceExhausted(
                f"the device cannot serve a frame every {robot.period_ns // 1_000_000} ms beside {len(others)} open "
                f"session{'s' * (len(others) > 1)} with {self._config.admission_headroom_percent} % kept free: "
                "lower the rate, or try again once a session has ended",
                field="open.control_period_ms",
                reason=Reason.DEVICE_FULL,
                retry_after_ms=RETRY_AFTER_MS,
            )
        return fitting[0]

    def _mode(self, request: OpenRequest) -> Mode:
        """The session's mode. A client that waits for each answer has one frame in flight: a pipeline is of no use."""
        mode = request.mode or Mode(self._config.mode)
        return Mode.AUTO if request.front and mode in (Mode.PIPELINED, Mode.DEPTH) else mode

    def enter(self, number: int, plan: SessionPlan) -> None:
        """Count the session as open."""
        self._plans[number] = plan
        self._decoders.enter(number, plan.cameras, plan.robot.period_ns, plan.decode_ns)

    def leave(self, number: int) -> bool:
        """Count the session as closed; False if it was not open."""
        self._decoders.leave(number)
        return self._plans.pop(number, None) is not None

    def forecast_answers(self, plans: Mapping[int, SessionPlan]) -> dict[int, AnswerForecast]:
        """The answers that each of these sessions gets, side by side."""
        seen = forecast(self._times, self._limits, tuple(plan.robot for plan in plans.values()))
        found: dict[int, AnswerForecast] = {}
        for (number, plan), each in zip(plans.items(), seen, strict=True):
            answers = AnswerForecast.of(each, plan.pace)
            age_ns = answers.age_ns + self._decoders.frame_ns(plan.cameras, number) + OVERHEAD_NS
            found[number] = AnswerForecast(age_ns=age_ns, gap_ns=min(answers.gap_ns, LONGEST_GAP_NS))
        return found

    @property
    def plans(self) -> dict[int, SessionPlan]:
        """The plans of the open sessions by number."""
        return dict(self._plans)

    def others(self, number: int | None = None) -> tuple[SessionPlan, ...]:
        """The plans of the open sessions, except one."""
        return tuple(plan for other, plan in self._plans.items() if other != number)

    @property
    def _times(self) -> PassTimes:
        if self._cost is None:
            raise RuntimeError("no worker has measured its passes")
        return self._cost.times

    def _paces(self, asked: _PlannedSession, request: OpenRequest) -> Iterable[Pace]:
        mode, stages = asked.mode, asked.program.passes
        if mode is Mode.AUTO:
            # In a pipeline, few chunks continue the one in execution.
            if asked.limit_ns is None or (request.continues and self._continues):
                return [auto_pace(asked.program)]
            return [auto_pace(asked.program), Pace(1)] if request.front else paces_of(asked.program).values()
        depth = request.depth if request.mode is Mode.DEPTH else self._config.depth
        if mode is Mode.DEPTH and not 1 <= depth <= stages:
            raise InvalidArgument(f"is {depth}; this model takes 1 to {stages}", field="open.depth")
        speculation = self._speculation(request, stages) if mode is Mode.SPECULATIVE else None
        return [served_pace(pace_of(mode, stages, depth, speculation), asked.program)]

    def _speculation(self, request: OpenRequest, stages: int) -> Speculation:
        """As the session requests, or as configured for sessions that choose no mode."""
        asked = request if request.mode is Mode.SPECULATIVE else self._config
        found = Speculation(asked.tolerance_bins, asked.max_passes)
        if found.max_passes > stages:
            raise InvalidArgument(f"is {found.max_passes}; this model takes 1 to {stages}", field="open.max_passes")
        for name, most in (("tolerance_bins", MOST_TOLERANCE_BINS), ("max_passes", stages)):
            value = getattr(found, name)
            if value and not self._bins:
                raise InvalidArgument(
                    f"is {value}; 1 to {most} are for models whose outputs are bins, and this one takes 0",
                    field=f"open.{name}",
                )
        return found

    def _at_pace(self, robot: ForecastSession, pace: Pace, asked: _PlannedSession) -> ForecastSession:
        """The robot at a pace, with the patience and the verification model of its frames."""
        if pace.speculation is None:
            return replace(robot, pace=pace)
        room_ns = (asked.limit_ns or 0) - self._decoders.frame_ns(asked.cameras) - OVERHEAD_NS
        patience_ns = max(room_ns, 1) if asked.limit_ns else 0
        verification = self._verification.of(asked.program.passes, pace.speculation.tolerance_bins)
        return replace(robot, pace=pace, patience_ns=patience_ns, verification=verification)

    def _planned(self, robot: ForecastSession, asked: _PlannedSession) -> SessionPlan:
        robots = (*(plan.robot for plan in asked.others), robot)
        return SessionPlan(
            mode=asked.mode,
            pace=robot.pace,
            forecast=forecast(self._times, self._limits, robots)[-1],
            robot=robot,
            program=asked.program,
            cameras=asked.cameras,
            decode_ns=self._decoders.frame_ns(asked.cameras),
        )

    def _check_decoding(self, request: OpenRequest, robot: ForecastSession, others: tuple[SessionPlan, ...]) -> None:
        cameras = _policy_cameras(request)
        load_ns = per_second(self._decoders.frame_ns(cameras), robot.period_ns)
        if others and not self._decoders.admits(load_ns, self._decode_loads(others)):
            sizes = " + ".join(f"{camera.width}x{camera.height}" for camera in cameras)
            at = f"[{request.cameras.index(cameras[0])}]" if len(cameras) == 1 else ""
            raise ResourceExhausted(
                f"decoding {sizes} pixels every {robot.period_ns // 1_000_000} ms exceeds what "
                f"the decoder threads have left with {self._config.admission_headroom_percent} % kept free: send "
                "smaller images or fewer, or try again once a session has ended",
                field=f"open.cameras{at}",
                reason=Reason.DEVICE_FULL,
                retry_after_ms=RETRY_AFTER_MS,
            )

    def _decode_loads(self, sessions: tuple[SessionPlan, ...]) -> list[int]:
        """The decoders' time per second of each session, measured or as planned."""
        numbers = {id(plan): number for number, plan in self.plans.items()}  # plans of two robots may be equal
        loads = [(plan, self._decoders.load_ns(numbers.get(id(plan), -1))) for plan in sessions]
        return [plan.decode_load_ns if load_ns is None else load_ns for plan, load_ns in loads]

    def _fits(self, plan: SessionPlan, others: tuple[SessionPlan, ...]) -> bool:
        if not others:
            return True
        # Promises are forecasts at today's pass times; they must also hold once passes use up the headroom.
        alone = forecast(self._times, self._limits, (plan.robot,))[0]
        promised = [*(other.forecast.begun_fps for other in others), alone.begun_fps]
        slower = self._times.scaled(_slowed_percent(self._config.admission_headroom_percent))
        seen = forecast(slower, self._limits, (*(other.robot for other in others), plan.robot))
        return all(each.begun_fps >= SAME_RATE * fps for each, fps in zip(seen, promised, strict=True))

    def _by_age(self, plans: list[SessionPlan], asked: _PlannedSession, limit_ns: int) -> list[SessionPlan]:
        """The plans within the age limit: highest rate first, among equal rates the lowest latency first."""
        lowest = [self._lowest_age_ns(plan, asked) for plan in plans]
        reached = zip(plans, lowest, strict=True)
        allowed = [plan for plan, age_ns in reached if max(age_ns, plan.worst_age_ns) - self._reach_ns <= limit_ns]
        if not allowed:
            raise FailedPrecondition(
                f"an action age of {limit_ns // 1_000_000} ms cannot be kept; "
                f"the lowest possible is {-(-(min(lowest) - self._reach_ns) // 1_000_000)} ms",
                field="open.max_action_age_ms",
                reason=Reason.AGE_UNREACHABLE,
            )
        highest = max(plan.forecast.fps for plan in allowed)  # rates within 2 % count as equal
        return sorted(allowed, key=lambda plan: (plan.forecast.fps < SAME_RATE * highest, *_youth(plan)))

    def _lowest_age_ns(self, plan: SessionPlan, asked: _PlannedSession) -> int:
        """The lowest age limit that the pace can keep.

        With drafts, older frames leave while a newer one is in flight. Then it is the mean age without a limit, because
        a lower limit would cost most of the actions.
        """
        if plan.pace.speculation is None:
            return plan.worst_age_ns

        def with_patience(patience_ns: int) -> SessionPlan:
            return self._planned(replace(plan.robot, patience_ns=patience_ns), asked)

        free = with_patience(0)
        return max(free.mean_age_ns, with_patience(free.forecast.age_ns).worst_age_ns)


def _slowed_percent(headroom_percent: int) -> int:
    """Pass times of a device with headroom, as a percentage of the measured ones: 20 % free makes 125 %."""
    whole = 100
    return whole * whole // (whole - headroom_percent)


def _policy_cameras(request: OpenRequest) -> tuple[CameraSpec, ...]:
    """The cameras that the policy gets; the first one before they are matched."""
    return request.policy_cameras or request.cameras[:1]


def _youth(plan: SessionPlan) -> tuple[int, bool, int]:
    return plan.forecast.age_ns, plan.pace.speculation is not None, plan.pace.depth
