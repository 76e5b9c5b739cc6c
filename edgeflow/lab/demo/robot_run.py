"""The simulated robot in real time: its world follows the wall clock, its frames go through the SDK."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Final

import numpy as np

from edgeflow.lab.demo.recording import CommandedFrame, RunRecorder, RunSummary, Series, TimeSeries
from edgeflow.lab.demo.world.robot import STATE_NAMES, STATE_UNITS, state_of
from edgeflow.lab.demo.world.scene import POLICY_CAMERA, POLICY_SIZE, Image
from edgeflow.lab.demo.world.sim import RobotSim
from edgeflow.lab.demo.world.task import EpisodeOutcome
from edgeflow_client.actions import Action, Directive
from edgeflow_client.clock import Clock, MonotonicClock
from edgeflow_client.connection.credentials import Credentials
from edgeflow_client.displacement import POSITION, ROTATION
from edgeflow_client.errors import FailedPrecondition
from edgeflow_client.flight import Statistics
from edgeflow_client.reasons import Reason
from edgeflow_client.robot import RobotClient
from edgeflow_client.types import ActionSchema, CameraSpec, Command, ImageFormat, Mode, StateSpec

CAMERA: Final = CameraSpec(POLICY_CAMERA, POLICY_SIZE, POLICY_SIZE, ImageFormat.RGB8)
STATE: Final = StateSpec(name="observation.state", size=len(STATE_NAMES), elements=STATE_NAMES, units=STATE_UNITS)
FRAME_HZ: Final = 50.0  # the most that two cores render beside the service, and more than serial decoding answers
TICK_S: Final = 0.01  # steps of physics and control; a control step of the simulation
SNAPSHOTS: Final = 6
_SNAPSHOT_EVERY_NS: Final = 600_000_000
_UPDATE_EVERY_NS: Final = 250_000_000
_IMAGES_KEPT: Final = 64  # frames in flight whose picture may still be needed


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """The plan of a run."""

    mode: Mode | None = None
    """None = the service's default mode."""
    _: KW_ONLY
    episodes: int | None = None
    """The number of episodes; None = no limit."""
    seconds: float | None = None
    """No episode starts after so many seconds; None = no limit. The run ends at the limit that is reached first."""
    anchored: bool = True
    """True: an action is resolved against the tool pose in its frame; False: against the pose when it arrives."""
    object_speed: float = 0.0
    """Speed of the objects in m/s."""
    seed: int = 0
    """Seed of the first episode; it grows by 1 per episode."""
    frame_hz: float = FRAME_HZ
    depth: int = 0
    """Pipeline depth, only for Mode.DEPTH."""
    tolerance_bins: int = 0
    max_passes: int = 0
    """Both: only for Mode.SPECULATIVE."""
    max_action_age_s: float | None = None
    send: ImageFormat | None = None
    """Encoding on the wire, as in its camera's `send`."""

    def __post_init__(self) -> None:
        if self.episodes is None and self.seconds is None:
            raise ValueError("a run needs a number of episodes or of seconds")


@dataclass(frozen=True, slots=True)
class RunProgress:
    """Progress of a run."""

    mode: Mode
    summary: RunSummary
    episodes: int
    successes: int


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RobotRun:
    """Results of a run. `outcomes` holds only finished episodes; the run ends when an episode does."""

    plan: RunPlan
    mode: Mode
    """The mode that the service agreed to."""
    model: str
    summary: RunSummary
    series: TimeSeries
    ages_ms: Series
    passes: Series
    """Passes per action."""
    outcomes: tuple[EpisodeOutcome, ...]
    snapshots: tuple[CommandedFrame, ...]
    statistics: Statistics

    @property
    def successes(self) -> int:
        return self.outcomes.count(EpisodeOutcome.SUCCESS)


@dataclass(slots=True)
class _Album:
    """Keeps a few frames of the run and the commands computed from them."""

    snapshots: list[CommandedFrame] = field(default_factory=list)
    _images: dict[int, tuple[Image, float]] = field(default_factory=dict)
    _next_ns: int = 0

    def taken(self, seq: int, image: Image, seconds: float) -> None:
        """Note a frame.

        seconds: since its episode started.
        """
        if len(self.snapshots) < SNAPSHOTS:
            self._images[seq] = image, seconds
            if len(self._images) > _IMAGES_KEPT:
                del self._images[next(iter(self._images))]

    def commanded(self, action: Action, instruction: str) -> None:
        image, seconds = self._images.pop(action.seq, (None, 0.0))
        if image is None or action.received_ns < self._next_ns or len(self.snapshots) >= SNAPSHOTS:
            return
        self._next_ns = action.received_ns + _SNAPSHOT_EVERY_NS
        x, y, z, *_, gripper = (float(value) for value in action.values)
        grip = "close" if gripper < 0.5 else "open"
        caption = f"{instruction}\n{100 * x:+.1f} {100 * y:+.1f} {100 * z:+.1f} cm, {grip}"
        self.snapshots.append(CommandedFrame(image, seconds, (x, -y), caption))  # the camera's up is the tool's -y


class DemoRobot:
    """One arm, one client, one run."""

    def __init__(self, plan: RunPlan, sim: RobotSim, client: RobotClient, clock: Clock) -> None:
        self._plan = plan
        self._sim = sim
        self._client = client
        self._clock = clock
        self._recorder = RunRecorder()
        self._album = _Album()
        self._passes: list[int] = []
        self._outcomes: list[EpisodeOutcome] = []
        self._obeyed: Directive | None = None
        self._answered = 0  # the newest frame whose action was executed

    def run(self, on_update: Callable[[RunProgress], None]) -> RobotRun:
        """Run episodes until the plan is complete."""
        while not self._finished():
            self._episode(on_update)
        now_ns = self._clock.now_ns()
        on_update(self._progress(now_ns))
        return RobotRun(
            plan=self._plan,
            mode=self._client.opened.mode,
            model=self._client.opened.model,
            summary=self._recorder.summary(now_ns),
            series=self._recorder.series(1.0),
            ages_ms=self._recorder.ages_ms,
            passes=np.array(self._passes, np.float64),
            outcomes=tuple(self._outcomes),
            snapshots=tuple(self._album.snapshots),
            statistics=self._client.statistics(),
        )

    def _finished(self) -> bool:
        plan = self._plan
        seconds = self._recorder.elapsed_ns(self._clock.now_ns()) / 1e9
        enough = plan.episodes is not None and len(self._outcomes) >= plan.episodes
        return enough or (plan.seconds is not None and seconds >= plan.seconds)

    def _episode(self, on_update: Callable[[RunProgress], None]) -> None:
        sim, clock = self._sim, self._clock
        sim.reset(self._plan.seed + len(self._outcomes))
        self._client.reset(sim.instruction)
        start_ns = frame_ns = update_ns = clock.now_ns()
        self._recorder.start(start_ns)
        while sim.outcome is EpisodeOutcome.RUNNING:
            now_ns = clock.now_ns()
            sim.step(max(0.0, (now_ns - start_ns) / 1e9 - sim.time))
            if now_ns >= frame_ns:
                self._look()
                # a late frame does not cause a burst of frames that make up for it
                frame_ns = max(frame_ns + round(1e9 / self._plan.frame_hz), now_ns)
            self._obey(self._client.latest())
            if now_ns >= update_ns:
                on_update(self._progress(now_ns))
                update_ns = now_ns + _UPDATE_EVERY_NS
            self._wait_until(min(frame_ns, now_ns + round(TICK_S * 1e9)))
        self._recorder.stop(clock.now_ns())
        self._outcomes.append(sim.outcome)

    def _look(self) -> None:
        captured_ns, pose = self._clock.now_ns(), self._sim.pose()
        image = self._sim.capture()
        state = state_of(pose, self._sim.aperture)
        seq = self._client.push(image, pose, captured_ns=captured_ns, state={STATE.name: state.tolist()})
        self._album.taken(seq, image, self._sim.time)

    def _obey(self, directive: Directive) -> None:
        if directive is self._obeyed:  # `latest` returns the same object until something changes
            return
        self._obeyed = directive
        action = directive.action
        if action is None:
            self._sim.hold()
            if directive.needs_reset and directive.command is not Command.STOP:
                self._client.reset()  # a simulated robot resumes by itself: nobody has to check that its path is clear
            return
        if action.seq != self._answered:  # otherwise a later row of its chunk
            self._answered = action.seq
            self._recorder.record(action.received_ns, action.age_ns)
            self._passes.append(action.timings.passes)
            self._album.commanded(action, self._sim.instruction)
        target = action.target("frame" if self._plan.anchored else self._sim.pose())
        if target.pose is not None:
            self._sim.command(target.pose, target.values["gripper"])

    def _wait_until(self, instant_ns: int) -> None:
        left_ns = instant_ns - self._clock.now_ns()
        if left_ns > 0:
            time.sleep(left_ns / 1e9)

    def _progress(self, now_ns: int) -> RunProgress:
        successes = self._outcomes.count(EpisodeOutcome.SUCCESS)
        mode = self._plan.mode or self._client.opened.mode
        return RunProgress(mode, self._recorder.summary(now_ns), len(self._outcomes), successes)


def run_robot(
    address: str,
    plan: RunPlan,
    on_update: Callable[[RunProgress], None],
    sim: RobotSim | None = None,
    credentials: Credentials | None = None,
) -> RobotRun:
    """Connect to a service and run the plan.

    Errors are the client's; FailedPrecondition if the model's actions do not fit the arm; DependencyError without
    OpenGL.
    """
    world = sim or RobotSim(plan.seed, plan.object_speed)
    clock = MonotonicClock()
    try:
        with RobotClient(
            address,
            cameras=[replace(CAMERA, send=plan.send)],
            state=[STATE],
            instruction=world.instruction,
            control_period_s=1.0 / plan.frame_hz,
            mode=plan.mode,
            depth=plan.depth,
            tolerance_bins=plan.tolerance_bins,
            max_passes=plan.max_passes,
            max_action_age_s=plan.max_action_age_s,
            credentials=credentials,
        ) as client:
            _check_schema(client.opened.schema)
            return DemoRobot(plan, world, client, clock).run(on_update)
    finally:
        if sim is None:
            world.close()


def _check_schema(schema: ActionSchema) -> None:
    moving = (*POSITION, *ROTATION)
    if schema.names != (*moving, "gripper") or schema.relative != (True,) * len(moving) + (False,):
        raise FailedPrecondition(
            f"the simulated robot needs relative x y z roll pitch yaw and an absolute gripper; "
            f"the model's actions are {' '.join(schema.names)}",
            field="opened.schema",
            reason=Reason.SCHEMA,
        )
