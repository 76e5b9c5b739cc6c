"""The gateway's view of control: the state of the service, and observations to be answered."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace

from edgeflow.errors import RETRY_AFTER_MS, DeadlineExceeded, RequestError, ResourceExhausted
from edgeflow.ipc.messages import Payload
from edgeflow.ipc.packets import close_all
from edgeflow.ipc.sealed import seal
from edgeflow.reasons import Reason
from edgeflow.service.children.child import ControlLink
from edgeflow.service.children.messages import ACTS_AT_ONCE, Act, ActCancel, ActDone, ActRefused, State
from edgeflow.service.faults import error_of_code
from edgeflow.service.security.auth import Caller
from edgeflow.service.sessions.requests import OpenRequest

STALE_S = 2.0  # control's last word counts for so long
SLACK_S = 2.0  # beyond the time limit of an action, for control's own answer to arrive


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """A checked observation. pixels: height*width*3 RGB bytes. received_ns: on the machine's monotonic clock."""

    opened: OpenRequest
    pixels: Payload
    received_ns: int
    decode_ns: int


class Control:
    """Observations sent to control and its answers, at most ACTS_AT_ONCE at a time; and control's last word."""

    def __init__(self, link: ControlLink, act_timeout_ms: int) -> None:
        self._link = link
        self._limit_s = act_timeout_ms / 1000
        self._credit = asyncio.Semaphore(ACTS_AT_ONCE)
        self._answers: dict[int, asyncio.Future[ActDone]] = {}
        self._last = 0
        self._state = State(state="starting", live=True, ready=False)
        self._heard_s = time.monotonic()

    @property
    def state(self) -> State:
        """Control's last word; neither live nor ready when that is more than STALE_S old."""
        if time.monotonic() - self._heard_s > STALE_S:
            return State(state=self._state.state, live=False, ready=False)
        return self._state

    def said(self, state: State) -> None:
        """Control says how the service is."""
        self._state, self._heard_s = state, time.monotonic()

    async def act(self, seen: Observation, caller: Caller) -> ActDone:
        """The answer to an observation; raises control's refusal, ResourceExhausted when too many already wait."""
        await self._take_credit()
        try:
            return await self._ask(seen, caller)
        finally:
            self._credit.release()

    async def _take_credit(self) -> None:
        if not self._credit.locked():
            await self._credit.acquire()
            return
        try:
            await asyncio.wait_for(self._credit.acquire(), self._limit_s)
        except asyncio.TimeoutError:
            raise _busy() from None

    def answered(self, message: ActDone | ActRefused) -> None:
        """Control answers; ignored if the client is gone."""
        answer = self._answers.get(message.request)
        if answer is None or answer.done():
            return
        if isinstance(message, ActDone):
            answer.set_result(message)
            return
        error = error_of_code(message.code, message.text, message.reason, message.field)
        if message.retry_after_ms and isinstance(error, RequestError):
            error.retry_after_ms = message.retry_after_ms
        answer.set_exception(error)

    async def _ask(self, seen: Observation, caller: Caller) -> ActDone:
        self._last += 1
        number = self._last
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        try:
            self._send(number, seen, caller)
            return await asyncio.wait_for(answer, self._limit_s + SLACK_S)
        except asyncio.TimeoutError:
            self._link.send(ActCancel(number))
            raise DeadlineExceeded("the service did not answer in time", reason=Reason.ACT_TIMEOUT) from None
        except asyncio.CancelledError:
            self._link.send(ActCancel(number))
            raise
        finally:
            del self._answers[number]

    def _send(self, number: int, seen: Observation, caller: Caller) -> None:
        message = Act(
            request=number,
            opened=replace(seen.opened, proprio_names=()),  # long, and used by the check alone
            peer=caller.peer,
            principal=caller.principal,
            token=caller.token,
            received_ns=seen.received_ns,
            decode_ns=seen.decode_ns,
        )
        try:
            pixels = seal(seen.pixels)
        except OSError:
            raise _busy() from None
        try:
            if not self._link.send(message, [pixels]):
                raise _busy()
        finally:
            close_all([pixels])


def _busy() -> ResourceExhausted:
    return ResourceExhausted(
        "too many observations wait already", reason=Reason.QUEUE_FULL, retry_after_ms=RETRY_AFTER_MS
    )
