"""Pilots of an environment: a policy in process or on a service, in lockstep or in real time, or no policy at all."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from edgeflow.config.matching import place_of
from edgeflow.contract import PolicyInputs
from edgeflow.lab.sim.environment import GymFrame, GymRobot, Numbers
from edgeflow_client.actions import Directive
from edgeflow_client.aging import OFF
from edgeflow_client.connection.credentials import Credentials
from edgeflow_client.errors import DeadlineExceeded, FailedPrecondition, Internal
from edgeflow_client.rate import RateKeeper
from edgeflow_client.robot import RobotClient
from edgeflow_client.types import CameraSpec, Command, Execution, ImageFormat, Mode, StateSpec

if TYPE_CHECKING:
    from edgeflow.in_process.policy import LocalPolicy

LOCKSTEP_PERIOD_S = 0.02  # between two frames; an environment may be faster than any service permits
ANSWER_WITHIN_S = 120.0
_POLL_S = 0.002


class Pilot(Protocol):
    """Drives an environment."""

    latencies_ms: list[float]
    """One entry per answer."""
    missed: int
    """Control steps that came late; 0 in lockstep."""

    def begin(self) -> None:
        """An episode begins."""

    def act(self, frame: GymFrame, /) -> Numbers | None:
        """The action `[dims]` in the environment's numbers; None = keep still."""


class UnservedPilot:
    """Needs no policy. choose: an action for an observation."""

    missed = 0

    def __init__(self, choose: Callable[[GymFrame], Numbers]) -> None:
        self.latencies_ms: list[float] = []
        self._choose = choose

    def begin(self) -> None:
        pass

    def act(self, frame: GymFrame, /) -> Numbers | None:
        return self._choose(frame)


class ChunkSource(Protocol):
    """A policy that is asked and waited for."""

    latencies_ms: list[float]
    history: int
    """Observations that an answer needs; above 1 it sees every one."""

    def begin(self) -> None:
        """Forget the episode before."""

    def ask(self, frame: GymFrame, /) -> Numbers | None:
        """A chunk `[rows, dims]`; None = HOLD."""


class Lockstep:
    """The environment waits for each answer, then executes its first `rows`; 0 = half of them."""

    missed = 0

    def __init__(self, source: ChunkSource, robot: GymRobot, rows: int) -> None:
        self.latencies_ms = source.latencies_ms
        self._source, self._robot, self._rows = source, robot, rows
        self._left: list[Numbers] = []

    def begin(self) -> None:
        self._source.begin()
        self._left = []

    def act(self, frame: GymFrame, /) -> Numbers | None:
        if not self._left or self._source.history > 1:
            chunk = self._source.ask(frame)
            if not self._left:
                self._left = [] if chunk is None else list(chunk[: self._rows or (len(chunk) + 1) // 2])
        return self._robot.action_of(self._left.pop(0)) if self._left else None


class ServedChunks:
    """A service's policy, through a session."""

    history = 1  # a service does not say

    def __init__(self, client: RobotClient) -> None:
        self.latencies_ms: list[float] = []
        self._client = client
        self._rate = RateKeeper(LOCKSTEP_PERIOD_S)

    def begin(self) -> None:
        self._client.reset()

    def ask(self, frame: GymFrame, /) -> Numbers | None:
        """Its chunk `[rows, dims]`; None = HOLD. A frame that got no answer is sent once more: the client ignores an
        answer that comes when the environment has just been silent for too long.
        """
        chunk = self._answer(frame)
        return self._answer(frame) if chunk is None else chunk

    def _answer(self, frame: GymFrame) -> Numbers | None:
        self._rate.wait()
        resume(self._client, self._client.latest())
        seq = self._client.push(dict(frame.images), state=dict(frame.state), instruction=frame.instruction)
        until_s = time.monotonic() + ANSWER_WITHIN_S
        while time.monotonic() < until_s:
            lost = not self._client.statistics().in_flight  # read first: an answer may come in between
            directive = self._client.latest()
            if directive.action is not None and directive.action.seq == seq:
                self.latencies_ms.append(directive.action.age_ns / 1e6)
                return directive.action.chunk
            if lost:
                return None
            time.sleep(_POLL_S)
        raise DeadlineExceeded(f"no answer within {ANSWER_WITHIN_S:g} s")


class LocalChunks:
    """A policy in this process. ConfigError or its own errors where the environment does not fit it."""

    def __init__(self, policy: LocalPolicy, frame: GymFrame) -> None:
        self.latencies_ms: list[float] = []
        self.history = policy.inputs.history
        self._policy = policy
        self._used = _used(policy.inputs, frame)

    def begin(self) -> None:
        self._policy.reset()

    def ask(self, frame: GymFrame, /) -> Numbers | None:
        seen: dict[str, Any] = {
            name: each for name, each in {**frame.images, **frame.state}.items() if name in self._used
        }
        begun_s = time.perf_counter()
        try:
            chunk = self._policy.infer(
                {**seen, "instruction": frame.instruction, "stamp_ns": round(1e9 * frame.seconds)}
            )
        except Internal:  # not finite, or outside the action limits: a service would say HOLD
            return None
        self.latencies_ms.append(1000 * (time.perf_counter() - begun_s))
        return np.array(chunk.values).reshape(chunk.horizon, chunk.dims)


def _used(inputs: PolicyInputs, frame: GymFrame) -> set[str]:
    """The names of an environment that a policy uses; all of them if some input is missing, which it then says."""
    cameras, vectors = list(frame.images), list(frame.state)
    places = [place_of(need.name, cameras) if need.named else 0 for need in inputs.cameras]
    found = [None if place is None else cameras[place] for place in places]
    found += [None if (place := place_of(need.name, vectors)) is None else vectors[place] for need in inputs.state]
    return {*cameras, *vectors} if None in found else {name for name in found if name}


class RealTime:
    """The environment steps by the clock at its control rate; what the robot may do is what the client's clock says."""

    def __init__(self, client: RobotClient, robot: GymRobot) -> None:
        self.latencies_ms: list[float] = []
        self.missed = 0
        self._client, self._robot = client, robot
        self._rate = RateKeeper(1.0 / robot.rate_hz)
        self._answered = 0  # the newest frame whose action was executed

    def begin(self) -> None:
        self._client.reset()
        self._rate = RateKeeper(1.0 / self._robot.rate_hz)

    def act(self, frame: GymFrame, /) -> Numbers | None:
        self.missed += self._rate.wait()
        self._client.push(dict(frame.images), state=dict(frame.state), instruction=frame.instruction)
        directive = self._client.latest()
        if (action := directive.action) is None:
            resume(self._client, directive)
            return None
        if action.seq != self._answered:
            self._answered = action.seq
            self.latencies_ms.append(action.age_ns / 1e6)
        return self._robot.action_of(action.values)


def resume(client: RobotClient, directive: Directive) -> None:
    """A simulated robot resumes by itself after a HOLD: nobody has to check that its path is clear."""
    if directive.command is Command.STOP:
        raise FailedPrecondition(f"the service says STOP: {directive.reason}")
    if directive.needs_reset:
        client.reset()


def client_of(
    address: str,
    robot: GymRobot,
    frame: GymFrame,
    *,
    real_time: bool,
    mode: Mode | None = None,
    credentials: Credentials | None = None,
) -> RobotClient:
    """A session for an environment. frame: any of its observations.

    In lockstep actions may have any age, and chunks do not continue each other: the clock does not count.
    """
    cameras: Sequence[CameraSpec] = [
        CameraSpec(name, image.shape[1], image.shape[0], ImageFormat.RGB8) for name, image in frame.images.items()
    ]
    return RobotClient(
        address,
        cameras=cameras,
        state=[StateSpec(name=name, size=len(vector)) for name, vector in frame.state.items()],
        instruction=robot.instruction,
        control_period_s=1.0 / robot.rate_hz if real_time else LOCKSTEP_PERIOD_S,
        mode=mode,
        max_action_age_s=None if real_time else math.inf,
        execution=Execution.AUTO if real_time else Execution.FRESH,
        aging=OFF,
        credentials=credentials,
    )
