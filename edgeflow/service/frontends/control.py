"""A front-end process's link to control: the state of the service, and single observations, decoded and answered."""

from __future__ import annotations

import asyncio
import contextlib
import time
from array import array
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from edgeflow.config.service import ServiceConfig
from edgeflow.contract import CHANNELS, PolicyInputs
from edgeflow.ipc.packets import Sealed, seal_written
from edgeflow.service.children.child import ControlLink, sealed
from edgeflow.service.children.messages import (
    ACTS_AT_ONCE,
    NUMBER,
    Act,
    ActCancel,
    ActDone,
    ActRejected,
    RobotActed,
    ServiceState,
    no_room,
)
from edgeflow.service.errors import error_of_code, no_worker
from edgeflow.service.host.spare import start_threads
from edgeflow.service.observation.pixels import decode_frame_into, frame_bytes
from edgeflow.service.observation.requests import CheckedFrame, OpenRequest, narrowed
from edgeflow.service.security.auth import Caller
from edgeflow_client.errors import (
    RETRY_AFTER_MS,
    DeadlineExceeded,
    RequestError,
    ResourceExhausted,
    WorkerError,
)
from edgeflow_client.reasons import Reason
from edgeflow_client.types import MAX_CHUNK_NUMBERS

Acted = TypeVar("Acted", ActDone, RobotActed)
STALE_S = 2.0  # validity of the last state that control sent
SLACK_S = 2.0  # beyond the time limit of an action, for control's answer to arrive
LOADING = ("starting", "warming")  # states of a service whose first worker is not ready
SMALL_BYTES = 320 * 240 * CHANNELS  # of pixels: decoding fewer is faster than a switch to a thread


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedObservation:
    """A checked observation."""

    opened: OpenRequest
    """The request, matched with the policy."""
    frame: CheckedFrame
    received_ns: int
    """Arrival time on the machine's monotonic clock."""


class ControlView:
    """Single observations and their answers, at most ACTS_AT_ONCE at a time, and the last state that control sent.

    inputs: what the policy needs; None before the first worker is ready.
    """

    def __init__(self, link: ControlLink, config: ServiceConfig) -> None:
        self.inputs: PolicyInputs | None = None
        self._link = link
        self._limit_s = config.timing.act_timeout_ms / 1000
        self._decoder = ObservationDecoder(config.decode_threads)
        self._credit = asyncio.Semaphore(ACTS_AT_ONCE)
        self._answers: dict[int, asyncio.Future[ActDone]] = {}
        self._last = 0
        self._state = ServiceState(state="starting", live=True, ready=False)
        self._heard_s = time.monotonic()
        self._changed = asyncio.Event()

    @property
    def state(self) -> ServiceState:
        """The last state that control sent; neither live nor ready once it is older than STALE_S."""
        if time.monotonic() - self._heard_s > STALE_S:
            return ServiceState(state=self._state.state, live=False, ready=False)
        return self._state

    def update_state(self, state: ServiceState) -> None:
        """Control sent the state of the service."""
        self._state, self._heard_s = state, time.monotonic()
        self._changed.set()

    def update_inputs(self, inputs: PolicyInputs | None) -> None:
        """Control sent the policy's inputs; None = no worker was ready yet."""
        self.inputs = inputs or self.inputs
        self._changed.set()

    async def loaded(self) -> PolicyInputs:
        """The inputs, once the service has started; Unavailable if it ends before."""
        while self._state.state in LOADING or (self._state.ready and self.inputs is None):
            self._changed.clear()
            await self._changed.wait()
        return self.needs()

    def needs(self) -> PolicyInputs:
        """The inputs; Unavailable before the first worker is ready."""
        if self.inputs is None:
            raise no_worker()
        return self.inputs

    async def act(self, seen: CheckedObservation, caller: Caller) -> ActDone:
        """The answer to an observation; raises control's error, or ResourceExhausted if too many wait already."""
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

    def answered(self, message: ActDone | ActRejected) -> None:
        """Control answered; ignored if the client is gone."""
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

    def take(self, message: ActDone | ActRejected, descriptors: list[int]) -> None:
        """Control answered, with an error in place of an answer whose values were lost."""
        if isinstance(message, ActDone):
            self.answered(whole(message, descriptors) or no_room(message.request))
        else:
            self.answered(message)

    async def _decoded(self, seen: CheckedObservation, credit: contextlib.ExitStack) -> tuple[Sealed, int]:
        """The pixels, and the time of decoding them. They take more memory than anything else here, so only what has
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

    async def _ask(self, seen: CheckedObservation, caller: Caller, credit: contextlib.ExitStack) -> ActDone:
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

    def _message(self, number: int, seen: CheckedObservation, caller: Caller, decode_ns: int) -> Act:
        opened, state = narrowed(seen.opened, seen.frame.state)
        return Act(
            request=number,
            opened=opened,
            state=state,
            caller=caller,
            received_ns=seen.received_ns,
            decode_ns=decode_ns,
        )


def _busy() -> ResourceExhausted:
    return ResourceExhausted(
        "too many observations wait already", reason=Reason.QUEUE_FULL, retry_after_ms=RETRY_AFTER_MS
    )


class ObservationDecoder:
    """Decodes a bounded number of observations at a time, in separate threads."""

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="decode")
        start_threads(self._pool, threads)
        self._turns = asyncio.Semaphore(threads)

    async def begin(self, frame: CheckedFrame, opened: OpenRequest) -> asyncio.Future[tuple[Sealed, int]]:
        """Wait for a turn and begin: the pixels of the policy's cameras, and the nanoseconds of decoding them.

        The future fails with RequestError or OSError. Shield it: a thread cannot be stopped, and its turn ends with it.
        """
        await self._turns.acquire()
        try:
            job = self._job(frame, opened)
        except BaseException:
            self._turns.release()
            raise
        job.add_done_callback(lambda _: self._turns.release())
        return job

    def close(self) -> None:
        """Begin nothing more."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _job(self, frame: CheckedFrame, opened: OpenRequest) -> asyncio.Future[tuple[Sealed, int]]:
        loop = asyncio.get_running_loop()
        if frame_bytes(opened) > SMALL_BYTES:
            return loop.run_in_executor(self._pool, _decoded, frame, opened)
        done: asyncio.Future[tuple[Sealed, int]] = loop.create_future()
        done.set_result(_decoded(frame, opened))
        return done


def _decoded(frame: CheckedFrame, opened: OpenRequest) -> tuple[Sealed, int]:
    began_ns = time.monotonic_ns()
    pixels = seal_written(frame_bytes(opened), lambda memory: decode_frame_into(memory, frame, opened))
    return pixels, time.monotonic_ns() - began_ns


def whole(answer: Acted, descriptors: list[int]) -> Acted | None:
    """The answer with the values that crossed as sealed memory; None if they are lost."""
    chunk = answer.action.chunk
    if chunk is None or chunk.values:
        return answer
    numbers = array(NUMBER)
    try:
        numbers.frombytes(sealed(descriptors, MAX_CHUNK_NUMBERS * numbers.itemsize))
        return answer.with_numbers(tuple(numbers))
    except (OSError, WorkerError):
        return None
