"""The queue of chat requests: one runs in the worker, a bounded number waits.

First come, first served. A request that waits longer than `chat.queue_ms` is rejected with Retry-After. When a client
disconnects, its request is stopped in the worker within one step.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from edgeflow.config.chat import ChatConfig
from edgeflow.ipc.chat_messages import (
    ChatDone,
    ChatReady,
    ChatRejected,
    ChatStart,
    ChatStop,
    ChatToken,
    PrefixSet,
    SetPrefix,
)
from edgeflow.ipc.messages import Message
from edgeflow.service.errors import error_of_code, no_worker
from edgeflow.service.observe.log import Log
from edgeflow.service.observe.process_metrics import ChatMetrics
from edgeflow.service.security.auth import Caller
from edgeflow_client.clock import Clock
from edgeflow_client.errors import (
    RETRY_AFTER_MS,
    DeadlineExceeded,
    EdgeflowError,
    Internal,
    RequestError,
    ResourceExhausted,
    Unauthenticated,
    Unavailable,
)
from edgeflow_client.reasons import Reason

PATIENCE_S = 1.0  # total wait for the reader of an answer while others are queued, by default for 2 s (`chat.queue_ms`)
MAX_WAITING_BYTES = 128 << 20  # images of requests that wait for their turn
Answer: TypeAlias = ChatToken | ChatDone


@dataclass(slots=True)
class QueueTurn:
    """The right to be answered now."""

    asked_ns: int
    """The time at which the request arrived; after its first choice, the end of the last one."""
    started_ns: int
    caller: Caller
    unread_ns: int = 0
    """Total wait for its reader."""

    @property
    def waited_ns(self) -> int:
        """Time spent in the queue."""
        return max(self.started_ns - self.asked_ns, 0)


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A request waiting for its turn."""

    caller: Caller
    turn: asyncio.Future[None]
    size: int
    """Bytes of its images."""


@dataclass(slots=True)
class _Ticket:
    """A request in the worker, with its unread answers."""

    caller: Caller
    answers: asyncio.Queue[Answer | Exception] = field(default_factory=asyncio.Queue)


class ChatQueue:
    """The queue; runs on the loop. ready: the worker's chat model, None without one. draining: new work is rejected."""

    def __init__(
        self, config: ChatConfig, send: Callable[[Message], None], clock: Clock, metrics: ChatMetrics, log: Log
    ) -> None:
        self.ready: ChatReady | None = None
        self.config = config
        self._send = send
        self.clock = clock
        self.metrics = metrics
        self._log = log
        self._tickets: dict[int, _Ticket] = {}
        self._waiting: deque[_Waiting] = deque()
        self._wanted = asyncio.Event()  # set while any request waits
        self._changes: dict[int, asyncio.Future[None]] = {}
        self._changed: dict[str, Sequence[int]] = {}  # prefixes that differ from the configuration's
        self._busy = False
        self._idle = asyncio.Event()
        self.draining = False
        self._last = 0

    # Messages of the worker.

    def worker_ready(self, ready: ChatReady) -> None:
        self.ready = ready
        memory = {"slots": 1 + len(ready.slots), "slot_bytes": ready.slot_bytes, "kv_bytes": ready.kv_bytes}
        named = {"model": ready.model, "family": ready.family, "numbers": ready.numbers, "draft": ready.draft}
        limits = {"length": ready.length, "capacity": ready.capacity}
        self._log.event("chat_ready", **named, **limits, **memory)
        for slot, ids in self._changed.items():  # a new worker starts with the prefixes of the configuration
            self._send(SetPrefix(self._number(), slot, list(ids)))

    def worker_message(self, message: ChatToken | ChatDone | ChatRejected | PrefixSet) -> None:
        if isinstance(message, ChatRejected) and message.code == Internal.code:  # not the client's fault: count it
            self.metrics.rejected.labels(message.reason).inc()
            self._log.event("chat_failed", reason=message.reason)
        answer: Answer | EdgeflowError | PrefixSet
        if isinstance(message, ChatRejected):
            answer = error_of_code(message.code, message.text, message.reason, message.field)
        else:
            answer = message
        if message.request in self._changes:
            _settle(self._changes.pop(message.request), answer)
        elif message.request in self._tickets and not isinstance(answer, PrefixSet):
            self._tickets[message.request].answers.put_nowait(answer)

    def worker_lost(self) -> None:
        """The running request is lost. Unlike a robot's session it is not resumed: the client must repeat it."""
        self.ready = None
        self._fail(no_worker("no chat model is ready"))

    def drain(self) -> None:
        """Reject new and waiting requests; running ones continue."""
        self.draining = True
        for waiting in self._waiting:
            if not waiting.turn.done():
                waiting.turn.set_exception(Unavailable("the service is stopping", reason=Reason.DRAINING))

    def end_callers(self, stays: Callable[[Caller], bool]) -> None:
        """End the requests of callers for whom `stays` is False: their token was revoked or has expired."""
        for waiting in self._waiting:
            if not waiting.turn.done() and not stays(waiting.caller):
                waiting.turn.set_exception(_revoked())
        for ticket in self._tickets.values():
            if not stays(ticket.caller):
                ticket.answers.put_nowait(_revoked())

    async def finish(self, timeout_ms: int) -> None:
        """Wait until no request runs; at the timeout, end the one that still does."""
        if self._busy:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._idle.wait(), timeout_ms / 1000)
        self._fail(Unavailable("the service is stopping", reason=Reason.DRAINING))

    # Calls for clients.

    def check(self) -> ChatReady:
        """The loaded model; Unavailable without one."""
        if self.draining:
            raise Unavailable("the service is stopping", reason=Reason.DRAINING)
        if self.ready is None:
            raise no_worker("no chat model is ready")
        return self.ready

    @contextlib.asynccontextmanager
    async def turn(self, caller: Caller, size: int = 0) -> AsyncIterator[QueueTurn]:
        """Wait for a turn, which ends with the context. ResourceExhausted if too many wait, or one waits too long.

        size: bytes that the request holds while it waits.
        """
        asked_ns = self.clock.now_ns()
        await self._turn(caller, size)
        try:
            self.check()
            yield QueueTurn(asked_ns, self.clock.now_ns(), caller)
        finally:
            self._pass_on()

    async def answer(self, message: ChatStart, turn: QueueTurn) -> AsyncGenerator[Answer, None]:
        """The tokens and the end of one answer. Closing the iterator stops the request."""
        self.check()
        number = self._number()
        ticket = self._tickets[number] = _Ticket(turn.caller)
        done = False
        try:
            self._send(replace(message, request=number))
            async for answer in self._answers(ticket, turn):
                if isinstance(answer, ChatDone):
                    done = True
                    answer = replace(answer, queue_ns=answer.queue_ns + turn.waited_ns)
                    turn.asked_ns = self.clock.now_ns()
                yield answer
        finally:
            del self._tickets[number]
            if not done:
                self._send(ChatStop(number, cancelled=True))

    async def wait_for_reader(self, room: Callable[[], Coroutine[None, None, None]], turn: QueueTurn) -> None:
        """Wait for `room`, up to the time limit of the answers (DeadlineExceeded).

        A slow reader must not block the queue: after PATIENCE_S of waiting in total, the turn ends as soon as another
        request waits (ResourceExhausted).
        """
        began_ns = self.clock.now_ns()
        reader = asyncio.create_task(room())
        others = asyncio.create_task(self._wanted_after(PATIENCE_S - turn.unread_ns / 1e9))
        try:
            await asyncio.wait({reader, others}, timeout=self._left_s(turn), return_when=asyncio.FIRST_COMPLETED)
            if not reader.done():
                raise self._unread() if others.done() else self._late()
        finally:
            turn.unread_ns += self.clock.now_ns() - began_ns
            reader.cancel()
            others.cancel()
            await asyncio.gather(reader, others, return_exceptions=True)

    def restore(self, slot: str, ids: Sequence[int]) -> None:
        """Take over a prefix that was changed before this process began; workers get it when they are ready."""
        self._changed[slot] = ids
        if self.ready is not None:
            self._send(SetPrefix(self._number(), slot, list(ids)))

    async def set_prefix(self, slot: str, ids: Sequence[int]) -> None:
        """Replace the prefix of a slot (no ids = remove it); returns once it is in use. Later workers get it too."""
        self.check()
        number = self._number()
        change = self._changes[number] = asyncio.get_running_loop().create_future()
        self._send(SetPrefix(number, slot, list(ids)))
        await change
        self._changed[slot] = ids
        self._log.event("prefix_set", slot=slot, tokens=len(ids))

    def stop(self, answer: ChatToken) -> None:
        """The text is complete (a stop string): ask the worker to end the request with ChatDone."""
        self._send(ChatStop(answer.request, cancelled=False))

    async def _answers(self, ticket: _Ticket, turn: QueueTurn) -> AsyncIterator[Answer]:
        loop = asyncio.get_running_loop()
        timer = loop.call_later(self._left_s(turn), ticket.answers.put_nowait, self._late())
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

    def _left_s(self, turn: QueueTurn) -> float:
        """The rest of the time limit of a turn's answers."""
        return max(self.config.request_s - (self.clock.now_ns() - turn.started_ns) / 1e9, 0)

    def _late(self) -> DeadlineExceeded:
        limit_s = self.config.request_s
        return DeadlineExceeded(f"the answer took longer than {limit_s:g} s", reason=Reason.CHAT_TIMEOUT)

    def _unread(self) -> ResourceExhausted:
        self.metrics.rejected.labels(Reason.SLOW_READER).inc()
        text = f"the answer was not read for {PATIENCE_S:g} s in all, and another request waits"
        return ResourceExhausted(text, reason=Reason.SLOW_READER)

    async def _wanted_after(self, seconds: float) -> None:
        await asyncio.sleep(max(seconds, 0))
        await self._wanted.wait()

    def _number(self) -> int:
        self._last += 1
        return self._last

    async def _turn(self, caller: Caller, size: int) -> None:
        self.check()
        if not self._busy:
            self._busy = True
            self._idle.clear()
            self.metrics.running.set(1)
            return
        if len(self._waiting) >= self.config.queue:
            raise self._full(f"{self.config.queue} requests are already waiting", Reason.QUEUE_FULL)
        if size + sum(waiting.size for waiting in self._waiting) > MAX_WAITING_BYTES:
            why = f"the images of waiting requests exceed {MAX_WAITING_BYTES} bytes"
            raise self._full(why, Reason.QUEUE_FULL)
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        late = loop.call_later(self.config.queue_ms / 1000, self._too_late, turn)
        waiting = _Waiting(caller, turn, size)
        self._waiting.append(waiting)
        self._count_waiting()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._pass_on()  # the turn came in the moment in which the client left
            raise
        finally:
            late.cancel()
            if waiting in self._waiting:
                self._waiting.remove(waiting)
            self._count_waiting()

    def _count_waiting(self) -> None:
        self.metrics.waiting.set(len(self._waiting))
        if self._waiting:
            self._wanted.set()
        else:
            self._wanted.clear()

    def _too_late(self, turn: asyncio.Future[None]) -> None:
        if not turn.done():
            turn.set_exception(
                self._full(f"the request waited longer than {self.config.queue_ms} ms", Reason.QUEUE_TIMEOUT)
            )

    def _pass_on(self) -> None:
        """Pass the turn to the request that waited longest."""
        while self._waiting:
            turn = self._waiting.popleft().turn
            if not turn.done():
                turn.set_result(None)
                return
        self._busy = False
        self._idle.set()
        self.metrics.running.set(0)

    def _full(self, text: str, reason: str) -> RequestError:
        self.metrics.rejected.labels(reason).inc()
        return ResourceExhausted(text, reason=reason, retry_after_ms=RETRY_AFTER_MS)

    def _fail(self, error: RequestError) -> None:
        for ticket in self._tickets.values():
            ticket.answers.put_nowait(error)
        while self._changes:
            _settle(self._changes.popitem()[1], error)


def _settle(change: asyncio.Future[None], answer: object) -> None:
    if change.done():  # the client is gone
        return
    if isinstance(answer, EdgeflowError):
        change.set_exception(answer)
    else:
        change.set_result(None)


def _revoked() -> Unauthenticated:
    return Unauthenticated("the token no longer permits this", field="authorization", reason=Reason.REVOKED)
