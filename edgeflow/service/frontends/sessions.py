"""The robots' process's side of sessions: one per connection, opened by its first observation."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from edgeflow.config.service import ServiceConfig
from edgeflow.ipc.packets import seal_parts
from edgeflow.scheduler.turns import TokenBucket
from edgeflow.service.children.child import ControlLink
from edgeflow.service.children.messages import (
    CloseRobot,
    ObserveRobot,
    OpenRobot,
    ResetRobot,
    RobotActed,
    RobotOpened,
    RobotRejected,
)
from edgeflow.service.errors import error_of_code
from edgeflow.service.frontends.control import SLACK_S, whole
from edgeflow.service.observation.requests import CheckedFrame, OpenRequest, narrowed
from edgeflow.service.security.auth import Caller
from edgeflow.service.sessions.frames import ActionEvent
from edgeflow.service.sessions.rates import CHANGE_PERIOD_NS, CHANGES, changes_too_often
from edgeflow_client.errors import (
    RETRY_AFTER_MS,
    DeadlineExceeded,
    EdgeflowError,
    FailedPrecondition,
    RequestError,
    ResourceExhausted,
    Unavailable,
)
from edgeflow_client.reasons import Reason
from edgeflow_client.types import Command

Forget: TypeAlias = Callable[[int], None]
Traced: TypeAlias = Callable[[OpenRequest], OpenRequest]
Made = TypeVar("Made")
FromControl: TypeAlias = RobotOpened | RobotActed | RobotRejected


class NoAction(EdgeflowError):
    """An observation gets no action: the robot must hold or stop. reason: the reason. cause: control's error."""

    code = "UNAVAILABLE"
    http_status = 503

    def __init__(self, command: str, cause: EdgeflowError, reason: str) -> None:
        super().__init__(cause.text)
        self.command = command
        self.cause = cause
        self.reason = reason


class _SilentTooLongError(EdgeflowError):
    """The session ended because its client was silent; the next observation opens another one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RobotAnswer:
    """The action of an observation."""

    action: ActionEvent
    epoch: int
    """Counts episodes, instructions and reopened sessions of the connection, from 1 on."""
    age_ns: int
    """Time since the observation arrived here. Delays of the camera and the network are unknown."""


def reason_of(error: EdgeflowError) -> str:
    """The reason of a rejection or a HOLD, for programs and metrics."""
    return str(error.reason) if isinstance(error, NoAction | RequestError) else error.code


def rows_of(action: ActionEvent) -> NDArray[np.float64]:
    """The rows of an action, [rows, numbers]; NoAction for HOLD and STOP."""
    if action.chunk is None:
        text = f"the robot has to {action.command.value}: {action.reason}"
        raise NoAction(action.command.value, Unavailable(text, reason=action.reason), action.reason)
    return np.array(action.values, np.float64).reshape(action.chunk.horizon, -1)


class SessionsAtControl:
    """The sessions of this process by number; runs on the loop."""

    def __init__(self, link: ControlLink, config: ServiceConfig) -> None:
        self._link = link
        self._limit_s = config.timing.act_timeout_ms / 1000 + SLACK_S
        self._last = 0
        self._open: dict[int, _OpenSession] = {}

    def connection(self, caller: Caller, traced: Traced = lambda opened: opened) -> RobotConnection:
        """The consecutive sessions of one connection. traced: adds its trace context to a request."""
        return RobotConnection(self, caller, traced)

    def take(self, message: FromControl, descriptors: list[int]) -> None:
        """Handle a message of control; ignored if its session is closed."""
        session = self._open.get(message.session)
        if session is None:
            return
        if not isinstance(message, RobotActed):
            session.heard(message)
        elif (found := whole(message, descriptors)) is not None:
            session.acted(found)
        else:
            text = "no memory for the answer"
            session.rejected(message.action.seq, ResourceExhausted(text, reason=Reason.QUEUE_FULL))

    async def open(self, opened: OpenRequest, state: list[float], caller: Caller) -> _OpenSession:
        """Open a session at control; raises control's error."""
        self._last += 1
        session = _OpenSession(self._last, self._link, self._limit_s, self._forget)
        self._open[session.number] = session
        request, _ = narrowed(opened, state)
        try:
            if not self._link.send(OpenRobot(session.number, request, caller)):
                raise _busy()
            await session.opening()
        except BaseException:
            session.close()
            raise
        return session

    def _forget(self, number: int) -> None:
        self._open.pop(number, None)


class RobotConnection:
    """The sessions of one client: a new one follows after the end of a session or a change of cameras."""

    def __init__(self, sessions: SessionsAtControl, caller: Caller, traced: Traced) -> None:
        self._sessions = sessions
        self._caller = caller
        self._traced = traced
        self._session: _OpenSession | None = None
        self._key: object = None
        self._epochs = 0  # of earlier sessions
        self._changes = TokenBucket(CHANGE_PERIOD_NS, CHANGES, time.monotonic_ns())
        self._instruction = ""
        self._stopped: NoAction | None = None  # until a reset
        self._unopened: tuple[object, EdgeflowError] | None = None  # a session that was not opened, and why

    async def act(self, opened: OpenRequest, frame: CheckedFrame, received_ns: int) -> RobotAnswer:
        """The action for an observation, or a RequestError or NoAction with the reason. One at a time.

        After STOP there is no action until `reset`, even in a new session.
        """
        if self._stopped is not None:
            raise self._stopped
        try:
            return await self._act(opened, frame, received_ns)
        except NoAction as error:
            if error.command == Command.STOP:
                text = "the robot was stopped: it goes on after a reset"
                self._stopped = NoAction(Command.STOP, FailedPrecondition(text), Reason.FAULT)
            raise

    async def _act(self, opened: OpenRequest, frame: CheckedFrame, received_ns: int) -> RobotAnswer:
        key = (opened.cameras, opened.state, opened.unnorm_key)
        session = await self._present(key, opened, frame)
        try:
            action = await session.observe(opened, frame, received_ns)
        except _SilentTooLongError:  # it ended while this observation was on its way
            session = await self._present(key, opened, frame)
            action = await session.observe(opened, frame, received_ns)
        age_ns = time.monotonic_ns() - received_ns
        if action.max_age_ms and age_ns > action.max_age_ms * 1_000_000:
            text = f"the action is older than {action.max_age_ms} ms"
            raise NoAction("hold", DeadlineExceeded(text, reason=Reason.ACTION_TOO_OLD), Reason.ACTION_TOO_OLD)
        return RobotAnswer(action=action, epoch=self._epochs + action.epoch, age_ns=age_ns)

    def reset(self) -> None:
        """A new episode begins, unless nothing was observed in the present one; ResourceExhausted for too many."""
        if self._session is not None and self._session.is_observed:
            self._take_change("reset")
            self._session.reset()
        self._stopped = None

    def close(self) -> None:
        """The client is gone; idempotent."""
        self._drop()

    async def _present(self, key: object, opened: OpenRequest, frame: CheckedFrame) -> _OpenSession:
        """The session for an observation: the present one, or a new one."""
        session = self._session
        if session is None or session.ended or key != self._key:
            session = await self._opened(key, opened, frame)
            self._key = key
        elif opened.instruction != self._instruction:
            self._take_change("instruction")
        self._instruction = opened.instruction
        return session

    async def _opened(self, key: object, opened: OpenRequest, frame: CheckedFrame) -> _OpenSession:
        """A new session; if the same one was rejected a moment ago, the same error."""
        if not self._changes.take(time.monotonic_ns()):
            if self._unopened is not None and self._unopened[0] == key:
                raise self._unopened[1]
            raise changes_too_often("observation", over_rate=False)
        self._drop()
        try:
            session = self._session = await self._sessions.open(self._traced(opened), list(frame.state), self._caller)
        except EdgeflowError as error:
            self._unopened = (key, error)
            raise
        self._unopened = None
        return session

    def _take_change(self, field: str) -> None:
        """Count a new session or episode, which costs control time; ResourceExhausted after too many."""
        if not self._changes.take(time.monotonic_ns()):
            raise changes_too_often(field, over_rate=False)

    def _drop(self) -> None:
        if self._session is not None:
            self._session.close()
            self._epochs += self._session.epoch
            self._session = None


class _OpenSession:
    """One session at control, and the observation that waits for its answer."""

    def __init__(self, number: int, link: ControlLink, limit_s: float, forget: Forget) -> None:
        self.number = number
        self.epoch = 1
        self.ended = False
        self._end: EdgeflowError | None = None  # the error that control sent
        self._link = link
        self._limit_s = limit_s
        self._forget = forget
        self._seq = 0
        self._begun_after = 0  # the last observation before the present episode
        loop = asyncio.get_running_loop()
        self._opening: asyncio.Future[None] = loop.create_future()
        self._answer: asyncio.Future[ActionEvent] | None = None

    @property
    def is_observed(self) -> bool:
        """True if it is open and its present episode has an observation."""
        return not self.ended and self._seq > self._begun_after

    async def opening(self) -> None:
        """Wait until it is open."""
        await _within(self._opening, self._limit_s)

    async def observe(self, opened: OpenRequest, frame: CheckedFrame, received_ns: int) -> ActionEvent:
        """The action for a frame. A late answer is never taken for that of another frame."""
        if self._end is not None:  # it arrived together with RobotOpened
            raise self._end
        began_ns = time.monotonic_ns()
        try:
            pixels = seal_parts([frame.images[opened.cameras.index(camera)] for camera in opened.policy_cameras])
        except OSError:
            raise _busy() from None
        self._seq += 1
        _, state = narrowed(opened, frame.state)
        message = ObserveRobot(
            session=self.number,
            seq=self._seq,
            state=state,
            instruction=opened.instruction,
            received_ns=received_ns,
            decode_ns=time.monotonic_ns() - began_ns,
        )
        answer = self._answer = asyncio.get_running_loop().create_future()
        try:
            if not self._link.send(message, [pixels.descriptor]):
                raise _busy()
            del pixels
            return await _within(answer, self._limit_s)
        finally:
            self._answer = None

    def reset(self) -> None:
        """Begin a new episode; ResourceExhausted if control takes nothing."""
        if not self._link.send(ResetRobot(self.number)):
            raise _busy()
        self._begun_after = self._seq

    def close(self) -> None:
        """End it, unless it has ended."""
        self._forget(self.number)
        if not self.ended:
            self.ended = True
            self._link.send(CloseRobot(self.number))

    def acted(self, message: RobotActed) -> None:
        """Control answers an observation."""
        self.epoch = max(self.epoch, message.action.epoch)
        if message.action.seq == self._seq and self._answer is not None and not self._answer.done():
            self._answer.set_result(message.action)

    def heard(self, message: RobotOpened | RobotRejected) -> None:
        """Control opens the session, rejects it or an observation, or ends it."""
        if isinstance(message, RobotOpened):
            if not self._opening.done():
                self._opening.set_result(None)
            return
        found = _error(message)
        if message.seq == 0:
            self.ended, self._end = True, found
            self._forget(self.number)
            if not self._opening.done():
                self._opening.set_exception(found)
        self.rejected(message.seq or self._seq, found)

    def rejected(self, seq: int, error: EdgeflowError) -> None:
        """An observation gets no action."""
        if seq == self._seq and self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)


async def _within(future: asyncio.Future[Made], limit_s: float) -> Made:
    """The result of a future, which is cancelled with this task; NoAction if it takes too long."""

    def expire() -> None:
        if not future.done():
            text = "the service did not answer in time"
            future.set_exception(NoAction(Command.HOLD, DeadlineExceeded(text), Reason.ACT_TIMEOUT))

    timer = asyncio.get_running_loop().call_later(limit_s, expire)
    try:
        return await future
    finally:
        timer.cancel()
        if future.done() and not future.cancelled():
            future.exception()  # retrieved, so that asyncio does not print it


def _error(message: RobotRejected) -> EdgeflowError:
    if message.code == "OK":
        return _SilentTooLongError(message.text)
    error = error_of_code(message.code, message.text, message.reason, message.field)
    if isinstance(error, RequestError):
        error.retry_after_ms = message.retry_after_ms or None
    return NoAction(message.command, error, message.reason) if message.command else error


def _busy() -> NoAction:
    text = "the service has no room for another observation"
    return NoAction(Command.HOLD, ResourceExhausted(text, retry_after_ms=RETRY_AFTER_MS), Reason.QUEUE_FULL)
