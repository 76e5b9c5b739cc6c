"""The gateway's view of control: the state of the service, and observations to be answered."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass

from edgeflow.config.service import ServiceConfig
from edgeflow.contract import PolicyInputs
from edgeflow.ipc.sealed import Sealed
from edgeflow.service.children.child import ControlLink
from edgeflow.service.children.messages import ACTS_AT_ONCE, Act, ActCancel, ActDone, ActRefused, State
from edgeflow.service.faults import error_of_code
from edgeflow.service.gateway.decoding import Decoder
from edgeflow.service.observation.matching import narrowed
from edgeflow.service.observation.requests import CheckedFrame, OpenRequest
from edgeflow.service.security.auth import Caller
from edgeflow_client.errors import RETRY_AFTER_MS, DeadlineExceeded, RequestError, ResourceExhausted, Unavailable
from edgeflow_client.reasons import Reason

STALE_S = 2.0  # control's last word counts for so long
SLACK_S = 2.0  # beyond the time limit of an action, for control's own answer to arrive


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """A checked observation. opened: matched with the policy. received_ns: on the machine's monotonic clock."""

    opened: OpenRequest
    frame: CheckedFrame
    received_ns: int


class Control:
    """Observations sent to control and its answers, at most ACTS_AT_ONCE at a time; and control's last word.

    inputs: what the policy needs; None before the first worker is ready.
    """

    def __init__(self, link: ControlLink, config: ServiceConfig) -> None:
        self.inputs: PolicyInputs | None = None
        self._link = link
        self._limit_s = config.timing.act_timeout_ms / 1000
        self._decoder = Decoder(config.decode_threads)
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

    def needs(self) -> PolicyInputs:
        """The inputs; Unavailable before the first worker is ready."""
        if self.inputs is None:
            raise Unavailable("no worker is ready", reason=Reason.NO_WORKER, retry_after_ms=RETRY_AFTER_MS)
        return self.inputs

    async def act(self, seen: Observation, caller: Caller) -> ActDone:
        """The answer to an observation; raises control's refusal, ResourceExhausted when too many already wait."""
        with contextlib.ExitStack() as credit:
            await self._take_credit()
            credit.callback(self._credit.release)
            return await self._ask(seen, caller, credit)

    def close(self) -> None:
        """Decode nothing more."""
        self._decoder.close()

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

    async def _decoded(self, seen: Observation, credit: contextlib.ExitStack) -> tuple[Sealed, int]:
        """The pixels, and the time that they took. They take more memory than anything else here, so only what has
        credit is decoded, and the credit of a client that leaves lasts until the thread is done.
        """
        try:
            job = await self._decoder.begin(seen.frame, seen.opened)
            try:
                return await asyncio.shield(job)
            except asyncio.CancelledError:
                kept = credit.pop_all()
                job.add_done_callback(lambda _: kept.close())
                raise
        except OSError:
            raise _busy() from None

    async def _ask(self, seen: Observation, caller: Caller, credit: contextlib.ExitStack) -> ActDone:
        pixels, decode_ns = await self._decoded(seen, credit)
        self._last += 1
        number = self._last
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        try:
            message = self._message(number, seen, caller, decode_ns)
            if not self._link.send(message, [pixels.descriptor]):
                raise _busy()
            del pixels
            return await asyncio.wait_for(answer, self._limit_s + SLACK_S)
        except asyncio.TimeoutError:
            self._link.send(ActCancel(number))
            raise DeadlineExceeded("the service did not answer in time", reason=Reason.ACT_TIMEOUT) from None
        except asyncio.CancelledError:
            self._link.send(ActCancel(number))
            raise
        finally:
            del self._answers[number]

    def _message(self, number: int, seen: Observation, caller: Caller, decode_ns: int) -> Act:
        opened, state = narrowed(seen.opened, seen.frame.state)
        return Act(
            request=number,
            opened=opened,
            state=state,
            peer=caller.peer,
            principal=caller.principal,
            token=caller.token,
            received_ns=seen.received_ns,
            decode_ns=decode_ns,
        )


def _busy() -> ResourceExhausted:
    return ResourceExhausted(
        "too many observations wait already", reason=Reason.QUEUE_FULL, retry_after_ms=RETRY_AFTER_MS
    )
