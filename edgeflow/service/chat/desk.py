"""Requests on their way to the worker's chat plane and back: one runs, a bounded number waits.

First come, first served; whoever waits longer than `chat.queue_ms` is told to come again. A request whose reader goes
away is stopped at the worker within one step.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from edgeflow.clock import Clock
from edgeflow.config import ChatConfig
from edgeflow.errors import DeadlineExceeded, RequestError, ResourceExhausted, Unavailable
from edgeflow.ipc.messages import ChatDone, ChatReady, ChatRefused, ChatStart, ChatStop, ChatToken
from edgeflow.service.faults import error_of_code
from edgeflow.service.log import EventLog
from edgeflow.service.metrics import Metrics
from edgeflow.service.runner import WorkerPort

Answer: TypeAlias = ChatToken | ChatDone
RETRY_AFTER_MS = 1000


@dataclass(slots=True)
class Turn:
    """The right to be answered now. asked_ns: when it was asked for, then when its last answer ended."""

    asked_ns: int
    started_ns: int

    @property
    def waited_ns(self) -> int:
        """In the queue."""
        return max(self.started_ns - self.asked_ns, 0)


@dataclass(slots=True)
class _Ticket:
    """A request that was sent: what came back and was not read yet."""

    answers: asyncio.Queue[Answer | Exception] = field(default_factory=asyncio.Queue)


class ChatDesk:
    """Runs on the loop. `ready` is the worker's chat model, None while there is none."""

    def __init__(self, config: ChatConfig, port: WorkerPort, clock: Clock, metrics: Metrics, log: EventLog) -> None:
        self.ready: ChatReady | None = None
        self.config = config
        self._port = port
        self._clock = clock
        self._metrics = metrics
        self._log = log
        self._tickets: dict[int, _Ticket] = {}
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._busy = False
        self._idle = asyncio.Event()
        self._draining = False
        self._last = 0

    # What the worker says.

    def worker_ready(self, ready: ChatReady) -> None:
        self.ready = ready
        slots = 1 + len(ready.slots)
        memory = {"slots": slots, "slot_bytes": ready.kv_bytes // slots, "kv_bytes": ready.kv_bytes}
        self._log.event("chat_ready", model=ready.model, family=ready.family, capacity=ready.capacity, **memory)

    def worker_message(self, message: ChatToken | ChatDone | ChatRefused) -> None:
        ticket = self._tickets.get(message.request)
        if ticket is None:
            return
        if isinstance(message, ChatRefused):
            ticket.answers.put_nowait(error_of_code(message.code, message.text, message.reason, message.field))
        else:
            ticket.answers.put_nowait(message)

    def worker_lost(self) -> None:
        """What ran is lost; a robot's worker comes back by itself, a chat request is for the client to repeat."""
        self.ready = None
        self._fail(_no_worker())

    def drain(self) -> None:
        """No new requests; what runs goes on."""
        self._draining = True
        for future in self._waiting:
            if not future.done():
                future.set_exception(Unavailable("the service is stopping", reason="DRAINING"))

    async def finish(self, timeout_ms: int) -> None:
        """Until nothing runs; what still does at the timeout ends then."""
        if self._busy:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._idle.wait(), timeout_ms / 1000)
        self._fail(Unavailable("the service is stopping", reason="DRAINING"))

    @property
    def summary(self) -> str:
        """The model and the memory of its slots, for a person."""
        if self.ready is None:
            return ""
        ready, slots = self.ready, 1 + len(self.ready.slots)
        whole_mib = ready.kv_bytes / 2**20
        size = f"{slots} slots of {ready.capacity} positions, {whole_mib / slots:.1f} MiB each, {whole_mib:.1f} in all"
        return f"{ready.model} ({ready.family}), {size}"

    # What clients ask.

    def check(self) -> ChatReady:
        """The model that answers now; Unavailable while there is none."""
        if self._draining:
            raise Unavailable("the service is stopping", reason="DRAINING")
        if self.ready is None:
            raise _no_worker()
        return self.ready

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[Turn]:
        """Wait for the turn; it goes to the next at the end. ResourceExhausted when too many wait, or for too long."""
        asked_ns = self._clock.now_ns()
        await self._turn()
        try:
            self.check()
            yield Turn(asked_ns, self._clock.now_ns())
        finally:
            self._pass_on()

    async def answer(self, message: ChatStart, turn: Turn) -> AsyncGenerator[Answer, None]:
        """Tokens and the end of one answer of the turn. Closing the iterator stops the request."""
        self.check()
        self._last += 1
        number = self._last
        ticket = self._tickets[number] = _Ticket()
        done = False
        try:
            self._port.send(replace(message, request=number))
            async for answer in self._answers(ticket, turn.started_ns):
                if isinstance(answer, ChatDone):
                    done = True
                    answer = replace(answer, queue_ns=answer.queue_ns + turn.waited_ns)
                    turn.asked_ns = self._clock.now_ns()
                yield answer
        finally:
            del self._tickets[number]
            if not done:
                self._port.send(ChatStop(number, cancelled=True))

    def stop(self, answer: ChatToken) -> None:
        """The text is complete (a stop string): the worker ends the request and says ChatDone."""
        self._port.send(ChatStop(answer.request, cancelled=False))

    async def _answers(self, ticket: _Ticket, started_ns: int) -> AsyncIterator[Answer]:
        limit_s = self.config.request_s
        late = DeadlineExceeded(f"the answer took longer than {limit_s:g} s", reason="CHAT_TIMEOUT")
        left_s = limit_s - (self._clock.now_ns() - started_ns) / 1e9
        timer = asyncio.get_running_loop().call_later(max(left_s, 0), ticket.answers.put_nowait, late)
        try:
            while True:
                answer = await ticket.answers.get()
                if isinstance(answer, Exception):
                    raise answer
                yield answer
                if isinstance(answer, ChatDone):
                    return
        finally:
            timer.cancel()

    async def _turn(self) -> None:
        self.check()
        if not self._busy:
            self._busy = True
            self._idle.clear()
            self._metrics.chat_running.set(1)
            return
        if len(self._waiting) >= self.config.queue:
            raise self._full(f"{self.config.queue} requests wait already", "QUEUE_FULL")
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        late = loop.call_later(self.config.queue_ms / 1000, self._too_late, turn)
        self._waiting.append(turn)
        self._metrics.chat_waiting.set(len(self._waiting))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._pass_on()
            raise
        finally:
            late.cancel()
            if turn in self._waiting:
                self._waiting.remove(turn)
            self._metrics.chat_waiting.set(len(self._waiting))

    def _too_late(self, turn: asyncio.Future[None]) -> None:
        if not turn.done():
            turn.set_exception(self._full(f"no turn within {self.config.queue_ms} ms", "QUEUE_TIMEOUT"))

    def _pass_on(self) -> None:
        """The turn goes to whoever waited longest."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._busy = False
        self._idle.set()
        self._metrics.chat_running.set(0)

    def _full(self, text: str, reason: str) -> RequestError:
        self._metrics.chat_refused.labels(reason).inc()
        return ResourceExhausted(text, reason=reason, retry_after_ms=RETRY_AFTER_MS)

    def _fail(self, error: RequestError) -> None:
        for ticket in self._tickets.values():
            ticket.answers.put_nowait(error)


def _no_worker() -> Unavailable:
    return Unavailable("no chat model is ready", reason="NO_WORKER", retry_after_ms=RETRY_AFTER_MS)
