"""A policy in the calling process: the worker's own loop, stepped by the caller until its frames are answered."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from itertools import count
from types import TracebackType
from typing import Any

import torch

from edgeflow.config.matching import Names
from edgeflow.config.service import ServiceConfig
from edgeflow.contract import Chunk, Pace, PolicyInputs, Speculation, StageProgram, within_limits
from edgeflow.engine.control.samples import sample_observations, uncounted
from edgeflow.engine.graphs import record_passes
from edgeflow.engine.policy import INSTRUCTION
from edgeflow.in_process.observation import EncodedObservation, check_observation
from edgeflow.ipc.messages import (
    CloseSession,
    FrameDropped,
    FrameResult,
    Message,
    OpenSession,
    ResetSession,
    SessionRejected,
    SubmitFrame,
)
from edgeflow.scheduler.pace import auto_pace, pace_of, served_pace
from edgeflow.scheduler.scheduler import Scheduler
from edgeflow.worker.build import build_engine
from edgeflow.worker.worker import Worker
from edgeflow_client.clock import MonotonicClock
from edgeflow_client.errors import (
    REQUEST_ERRORS,
    CheckpointError,
    ConfigError,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    OutOfRange,
    RequestError,
    ResourceExhausted,
)
from edgeflow_client.reasons import Reason
from edgeflow_client.types import ActionSchema, Mode

Observed = Mapping[str, Any]


@dataclass(slots=True, kw_only=True)
class _LocalRobot:
    """A robot's session with the loop."""

    session: int
    epoch: int = 1
    seq: int = 0
    stamp_ns: int = 0
    """The stamp of its last frame in this epoch."""
    instruction: str = ""
    """The instruction of its last frame."""


class LocalPolicy:
    """A policy that answers in the calling process, made by `edgeflow.load`. One thread at a time may use it.

    Frames take the way that they take in a service's worker, with the same answers. What a service adds is missing:
    deadlines, HOLD, STOP and the watchdog of a robot. Do not move a robot with it.
    """

    def __init__(self, config: ServiceConfig) -> None:
        with torch.no_grad():
            self._built = build_engine(config)
            record_passes(self._built.engine, _unreported, required=config.graphs == "on")
        if self._built.engine.graphs is not None:
            self._built.engine.graphs.seal()
        self._config, self._clock = config, MonotonicClock()
        policy = self._built.engine.policy
        self._policy = policy
        if not config.unnorm_key and len(policy.unnorm_keys) > 1:
            raise ConfigError(f"unnorm_key: choose one of {', '.join(policy.unnorm_keys)}")
        self._inputs = policy.inputs
        self._schema = policy.action_schema(config.unnorm_key or None)
        self._names = Names.of(config, policy.inputs)
        self._reads_text = policy.text_rows(INSTRUCTION) > 0
        self._limits = replace(self._built.limits, drain_after_ns=0)  # no frame comes while one is answered
        self._closed = False
        self._one_caller = threading.Lock()
        self._begin()
        self._try()

    @property
    def inputs(self) -> PolicyInputs:
        """The cameras and state vectors that the policy needs."""
        return self._inputs

    @property
    def schema(self) -> ActionSchema:
        """Names, units and limits of an action's values, and the horizon of a chunk."""
        return self._schema

    def infer(self, observation: Observed, robot: Hashable = 0) -> Chunk:
        """The policy's answer to an observation: `horizon` actions.

        observation: cameras by name as uint8 arrays [height, width, 3], RGB; state vectors by name as numbers [n]; the
        "instruction"; the time of the capture as "stamp_ns", which by default is now; and, if `inputs.most_delay_ms` is
        above 0, the time from the capture until the first row is executed as "delay_ms", by default 0. A name may go
        without its prefix: `top` is `observation.images.top`. robot: whose observation it is; each robot has its own
        history.

        InvalidArgument names what is missing, unknown or wrong. Internal: the answer is not finite or outside the
        action limits.
        """
        self._check_open()
        checked = self._checked(observation, robot, "observation")
        return self._chunks({robot: checked})[robot]

    def infer_many(self, observations: Mapping[Hashable, Observed]) -> dict[Hashable, Chunk]:
        """The answers to one observation of each of several robots, by robot; their frames share passes.

        Errors as in `infer`; one wrong observation rejects all. ResourceExhausted for more robots than `max_sessions`.
        """
        self._check_open()
        given: object = observations
        if not isinstance(given, Mapping):
            text = f"must be a dict of observations by robot, got {type(given).__name__}"
            raise InvalidArgument(text, field="observations")
        checked = {robot: self._checked(each, robot, f"{robot!r}") for robot, each in observations.items()}
        return self._chunks(checked)

    def reset(self, robot: Hashable = 0) -> None:
        """Begin a new episode of a robot: what came before does not matter to its next answer.

        Another instruction does so by itself.
        """
        self._check_open()
        found = self._robots.get(robot)
        if found is not None:
            found.stamp_ns = 0
            self._new_epoch(found)

    def forget(self, robot: Hashable) -> None:
        """Give the place of a robot to others."""
        self._check_open()
        found = self._robots.pop(robot, None)
        if found is not None:
            self._worker.inbox.put(CloseSession(found.session))

    def close(self) -> None:
        """Free the model's memory. A closed policy answers no more."""
        if not self._closed:
            self._leave()
            self._closed = True
            del self._worker, self._built, self._policy

    def __enter__(self) -> LocalPolicy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _begin(self) -> None:
        """Begin with a loop of no sessions."""
        engine = self._built.engine
        self._published: list[Message] = []
        self._robots: dict[Hashable, _LocalRobot] = {}
        self._sessions = count(1)
        self._worker = Worker(
            engine,
            Scheduler(self._limits, whole=engine.runs_whole),
            self._clock,
            self._published.append,
            default_unnorm_key=self._config.unnorm_key,
            trajectory=self._config.trajectory,
        )

    def _try(self) -> None:
        """Answer a made-up frame, which compiles and reserves what the first real one would, and shows damage."""
        (made_up,) = sample_observations(self.inputs, 1, INSTRUCTION)
        images = list(made_up.images.values())
        checked = EncodedObservation(
            sizes=[side for image in images for side in (image.height, image.width)],
            payload=tuple(bytes(image.data) for image in images),
            state=[number for vector in made_up.state.values() for number in vector],
            instruction=INSTRUCTION,
            stamp_ns=None,
            delay_ms=made_up.delay_ms,
        )
        with uncounted(self._policy):
            (answer,) = self._answers({None: checked}).values()
        if isinstance(answer, FrameResult) and not answer.valid:
            raise CheckpointError("model: its answers are not finite: the checkpoint is damaged, or a plug-in is wrong")
        schema = self._schema
        if isinstance(answer, FrameResult):
            found, announced = [answer.chunk.horizon, answer.chunk.dims], [schema.horizon, len(schema.names)]
            if found != announced:
                text = f"model: an answer of {type(self._policy).__name__} has shape {found}"
                raise CheckpointError(f"{text}; its action_schema announces {announced}")
        self._leave()

    def _leave(self) -> None:
        """Close all sessions."""
        for each in self._robots.values():
            self._worker.inbox.put(CloseSession(each.session))
        self._robots.clear()
        with torch.no_grad():
            self._worker.step()
        self._published.clear()

    def _check_open(self) -> None:
        if self._closed:
            raise FailedPrecondition("the policy is closed: load it again", field="policy")

    def _checked(self, observation: Observed, robot: Hashable, field: str) -> EncodedObservation:
        try:
            checked = check_observation(observation, self.inputs, self._names, reads_text=self._reads_text)
            last_ns = self._robots[robot].stamp_ns if robot in self._robots else 0
            if checked.stamp_ns is not None and checked.stamp_ns < last_ns:
                text = f"'stamp_ns' {checked.stamp_ns} is earlier than the one before, {last_ns}; a new episode begins"
                raise OutOfRange(f"{text} with reset()", reason=Reason.STAMP_OLD)
        except RequestError as error:
            raise type(error)(error.text, field=field, reason=error.reason) from None
        return checked

    def _chunks(self, checked: Mapping[Hashable, EncodedObservation]) -> dict[Hashable, Chunk]:
        """The checked answers to checked observations."""
        answers = self._answers(checked)
        return {robot: self._chunk(answer) for robot, answer in answers.items()}

    def _chunk(self, answer: FrameResult | FrameDropped) -> Chunk:
        if isinstance(answer, FrameDropped):
            raise REQUEST_ERRORS[answer.code](answer.text, reason=answer.reason)
        if not answer.valid or not within_limits(answer.chunk, self._schema):
            kind = "outside the action limits" if answer.valid else "not finite"
            raise Internal(f"the policy's output is {kind}", reason=Reason.POLICY_OUTPUT_INVALID)
        return answer.chunk

    def _answers(self, checked: Mapping[Hashable, EncodedObservation]) -> dict[Hashable, FrameResult | FrameDropped]:
        """Submit a frame of each robot and step the loop until all are answered."""
        new, most = [robot for robot in checked if robot not in self._robots], self._limits.max_sessions
        if len(self._robots) + len(new) > most:
            raise ResourceExhausted(
                f"{len(self._robots) + len(new)} robots; the policy was loaded for {most}: `forget` some, or load it "
                f"with max_sessions={len(self._robots) + len(new)}"
            )
        if not self._one_caller.acquire(blocking=False):
            raise FailedPrecondition("another thread is asking this policy: let one thread at a time use it")
        try:
            with torch.no_grad():
                for robot in new:
                    self._open(robot)
                waiting = {self._robots[robot].session: robot for robot in checked}
                for robot, each in checked.items():
                    self._submit(self._robots[robot], each)
                found: dict[Hashable, FrameResult | FrameDropped] = {}
                while len(found) < len(checked):
                    if not self._worker.step() and not self._published:
                        wake_ns = self._worker.wake_at_ns() or 0
                        self._worker.inbox.wait(max(0, wake_ns - self._clock.now_ns()) / 1e9)
                    for message in self._published:
                        if isinstance(message, FrameResult | FrameDropped):
                            found[waiting[message.session]] = message
                    self._published.clear()
        except RequestError:
            raise
        except BaseException:  # interrupted, or out of memory: passes in flight are lost with the loop
            with contextlib.suppress(Exception):
                self._leave()
            self._begin()
            raise
        finally:
            self._one_caller.release()
        return {robot: found[robot] for robot in checked}

    def _open(self, robot: Hashable) -> None:
        """Give a new robot its session; RequestErrors where there is none left."""
        session = next(self._sessions)
        self._worker.inbox.put(
            OpenSession(session=session, epoch=1, pace=self._pace(), unnorm_key="", instruction=INSTRUCTION)
        )
        self._worker.step()
        rejected = next((each for each in self._published if isinstance(each, SessionRejected)), None)
        self._published.clear()
        if rejected is not None:
            raise REQUEST_ERRORS[rejected.code](rejected.text, reason=rejected.reason)
        self._robots[robot] = _LocalRobot(session=session)

    def _submit(self, robot: _LocalRobot, checked: EncodedObservation) -> None:
        if robot.seq and checked.instruction != robot.instruction:
            self._new_epoch(robot)  # as in a service
        robot.instruction = checked.instruction
        robot.seq += 1
        robot.stamp_ns = self._clock.now_ns() if checked.stamp_ns is None else checked.stamp_ns
        self._worker.inbox.put(
            SubmitFrame(
                session=robot.session,
                epoch=robot.epoch,
                seq=robot.seq,
                sizes=checked.sizes,
                instruction=checked.instruction,
                payload=checked.payload,
                state=checked.state,
                stamp_ns=robot.stamp_ns,
                start_delay_ns=round(checked.delay_ms * 1e6),
            )
        )

    def _new_epoch(self, robot: _LocalRobot) -> None:
        robot.epoch += 1
        self._worker.inbox.put(ResetSession(robot.session, robot.epoch))

    def _pace(self) -> Pace:
        """How frames are decoded: as in a session that chooses no mode and no age limit."""
        config, program = self._config, self._program
        if config.mode == "auto":
            return auto_pace(program)
        speculation = Speculation(config.tolerance_bins, config.max_passes)
        return served_pace(pace_of(Mode(config.mode), program.passes, config.depth, speculation), program)

    @property
    def _program(self) -> StageProgram:
        return self._policy.program(self._config.unnorm_key or None)


def _unreported(step: str, done: int, total: int) -> None:
    """Progress that nobody waits for."""
