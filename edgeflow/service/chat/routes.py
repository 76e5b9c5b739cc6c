"""OpenAI-compatible routes: chat completions, completions, tokenize. http/answers.py writes their errors."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from edgeflow.config.service import ServiceConfig
from edgeflow.ipc.chat_messages import ChatDone, ChatReady, ChatStart
from edgeflow.model_paths import EMBEDDED_CHAT, EMBEDDED_LOGS
from edgeflow.service.chat.answer import Piece, answer_pieces, start_message, usage
from edgeflow.service.chat.body import ChatBody, CompletionBody, TokenizeBody
from edgeflow.service.chat.formats import ChatFormat, TextFormat
from edgeflow.service.chat.intake import Intake
from edgeflow.service.chat.prompts import ChatText
from edgeflow.service.chat.queue import ChatQueue, QueueTurn
from edgeflow.service.chat.schemas import AnswerSchema
from edgeflow.service.chat.tool_calls import CallReader
from edgeflow.service.http.answers import CALLER, REQUEST_ID, error_body, unless_gone
from edgeflow.service.security.auth import Caller
from edgeflow_client.errors import EdgeflowError, RequestError, Unavailable
from edgeflow_client.reasons import Reason

MAX_UNREAD_BYTES = 1 << 20
CHUNK_BYTES = 16 << 10


class EventQueue:
    """A bounded queue of events, filled by a separate task and read by the response."""

    def __init__(self, most: int = MAX_UNREAD_BYTES) -> None:
        self._most = most
        self._events: deque[bytes] = deque()
        self._size = 0
        self._room = asyncio.Event()
        self._some = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def begin(self, produce: Coroutine[Any, Any, None]) -> None:
        """Run the coroutine that adds the events; the stream ends with it."""
        self._task = asyncio.create_task(produce, name="chat-answer")
        self._task.add_done_callback(lambda _: self._some.set())

    @property
    def full(self) -> bool:
        """True if the reader must take events before more may be added."""
        return self._size >= self._most

    async def room(self) -> None:
        """Wait until there is room."""
        while self.full:
            self._room.clear()
            await self._room.wait()

    def add(self, event: str) -> None:
        """Add an event; wait for room before a large one."""
        data = event.encode()
        self._events.append(data)
        self._size += len(data)
        self._some.set()

    async def first(self) -> None:
        """Wait for the first event; raises what the task raised before it."""
        await self._some.wait()
        if not self._events and self._task is not None:
            await self._task

    async def chunks(self) -> AsyncIterator[bytes]:
        """The events, joined where several wait; EdgeflowError as raised by the task, after the last event."""
        while True:
            await self._some.wait()
            self._some.clear()
            while self._events:
                yield self._take()
            if self._task is not None and self._task.done() and not self._events:
                self._task.result()
                return

    async def close(self) -> None:
        """Cancel the task, and wait until it has released its turn."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _take(self) -> bytes:
        parts: list[bytes] = []
        size = 0
        while self._events and (not parts or size + len(self._events[0]) <= CHUNK_BYTES):
            parts.append(self._events.popleft())
            size += len(parts[-1])
        self._size -= size
        if not self.full:
            self._room.set()
        return b"".join(parts)


Keep: TypeAlias = Callable[[str, bytes], None]


@dataclass(frozen=True, slots=True)
class _ValidatedRequest:
    """A validated request."""

    caller: Caller
    messages: tuple[ChatStart, ...]
    """One for each prompt."""
    body: ChatBody | CompletionBody
    schema: AnswerSchema
    """The schema of its answers."""
    shape: ChatFormat | TextFormat
    """The format of its answers."""

    @property
    def choices(self) -> range:
        """The numbers of its answers: those of the first prompt come first."""
        return range(len(self.messages) * self.body.n)

    @property
    def size(self) -> int:
        """Bytes of its images."""
        return sum(len(message.payload) for message in self.messages)


class ChatFront:
    """The state shared by the routes. `text` is None if no chat model is configured.

    keep: stores data under a key for the next chat front. unread_bytes: the most unread bytes of a streamed answer.
    """

    def __init__(self, config: ServiceConfig, queue: ChatQueue, keep: Keep) -> None:
        self.queue = queue
        self.text: ChatText | None = None
        self.intake = Intake(config, queue.metrics)
        self.keep = keep
        self.unread_bytes = MAX_UNREAD_BYTES
        self._config = config

    async def load(self) -> None:
        """Load the tokenizer; raises StartErrors."""
        path = self._config.chat_path
        if path is not None:
            self.text = await asyncio.to_thread(ChatText, path, self._config.chat, self._config.limits)

    @property
    def models(self) -> list[dict[str, Any]]:
        """The entries in /v1/models. reads: the only form of prompt that the model was trained on."""
        ready = self.queue.ready
        if self.text is None or ready is None:
            return []
        shared = {"object": "model", "owned_by": "edgeflow", "fingerprint": ready.model_fingerprint}
        limits = {"max_model_len": ready.length, "images": ready.images, **_long_limits(ready)}
        draft = {"draft": ready.draft} if ready.draft else {}
        reads = {"reads": "robot-state"} if self._config.chat.model in (EMBEDDED_CHAT, EMBEDDED_LOGS) else {}
        return [{"id": name, **shared, **limits, **draft, **reads} for name in self.text.names()]

    def loaded(self) -> ChatText:
        """The tokenizer and templates; Unavailable without a chat model."""
        if self.text is None:
            raise Unavailable("no chat model is configured", reason=Reason.NO_CHAT)
        return self.text

    async def ask(self, body: ChatBody | CompletionBody, request_id: str, caller: Caller) -> _ValidatedRequest:
        """Check the names, build the prompt and fill in the defaults."""
        text, ready = self.loaded(), self.queue.check()
        slot = text.slot(body.model, body.slot)
        if isinstance(body, ChatBody):
            prompts = [await asyncio.to_thread(text.chat_prompt, body, slot)]
        else:
            prompts = await asyncio.to_thread(text.text_prompts, body, slot)
        schema, limits = body.answer_schema, (self._config.chat.max_tokens, self._config.chat.max_tokens_limit)
        messages = tuple(start_message(body, prompt, schema.text, ready, limits) for prompt in prompts)
        format_of = ChatFormat if isinstance(body, ChatBody) else TextFormat
        shape = format_of(request_id, int(time.time()), ready.model, text.tokenizer)
        return _ValidatedRequest(caller, messages, body, schema, shape)

    async def pieces(self, asked: _ValidatedRequest, index: int, turn: QueueTurn) -> AsyncGenerator[Piece, None]:
        """The pieces of one choice."""
        body, reader = asked.body, None
        if isinstance(body, ChatBody) and body.offered_tools:
            names = [tool.function.name for tool in body.offered_tools]
            reader = CallReader(names, inside=bool(body.forced_tools), one=not body.parallel_tool_calls)
        prompt, number = divmod(index, body.n)
        message = asked.messages[prompt]
        if message.seed >= 0:
            message = replace(message, seed=message.seed + number)  # another answer for each choice
        tokenizer = self.loaded().tokenizer
        async with contextlib.aclosing(
            answer_pieces(self.queue, tokenizer, message, turn, stops=body.stops, reader=reader)
        ) as pieces:
            try:
                async for piece in pieces:
                    yield piece
            except RequestError as error:
                raise asked.schema.named(error) from None


def _long_limits(ready: ChatReady) -> dict[str, Any]:
    """The limits of slots with a memory, for /v1/models; empty without a memory gate. from_tokens: the shortest prompt
    of which a part is folded.
    """
    long = ready.long
    if long is None:
        return {}
    sizes = {"sink": long.sink, "window": long.window, "segment": long.segment}
    return {"long": {"from_tokens": long.threshold, **sizes, "slot_positions": ready.capacity}}


def chat_routes(front: ChatFront) -> list[Route]:
    """The routes."""

    async def chat_completions(request: Request) -> Response:
        """Answer a conversation; with `stream`, as server-sent events."""
        return await _answer(front, request, ChatBody)

    async def completions(request: Request) -> Response:
        """Continue a text; with `stream`, as server-sent events."""
        return await _answer(front, request, CompletionBody)

    async def tokenize(request: Request) -> JSONResponse:
        """Return the token ids of a text, or of messages after the chat template."""
        async with front.intake.body(TokenizeBody, request) as body:
            text = front.loaded()
            text.slot(body.model, None)
            if body.messages is not None:
                ids = await asyncio.to_thread(text.count, body.messages)
            else:
                ids = await asyncio.to_thread(text.encode, body.prompt or "")
        ready = front.queue.ready
        return JSONResponse({"tokens": ids, "count": len(ids), "max_model_len": ready.length if ready else None})

    found = {"/v1/chat/completions": chat_completions, "/v1/completions": completions, "/tokenize": tokenize}
    return [Route(path, handler, methods=["POST"]) for path, handler in found.items()]


async def _answer(front: ChatFront, request: Request, kind: type[ChatBody | CompletionBody]) -> Response:
    async with front.intake.body(kind, request) as body:
        asked = await front.ask(body, request.scope[REQUEST_ID], request.scope[CALLER])
    if not body.stream:
        return JSONResponse(await unless_gone(request, _collect(front, asked)))
    outgoing = EventQueue(front.unread_bytes)
    outgoing.begin(_stream(front, asked, outgoing))
    try:
        await unless_gone(request, outgoing.first())  # a rejection becomes a status, not an event
    except BaseException:
        await outgoing.close()
        raise
    return _Streamed(outgoing)


class _Streamed(StreamingResponse):
    """Server-sent events. The answer ends with the response, even if the reader disconnects."""

    def __init__(self, outgoing: EventQueue) -> None:
        super().__init__(_sent(outgoing), media_type="text/event-stream")
        self._outgoing = outgoing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._outgoing.close()


async def _collect(front: ChatFront, asked: _ValidatedRequest) -> dict[str, Any]:
    choices, dones = [], []
    async with front.queue.turn(asked.caller, asked.size) as turn:
        for index in asked.choices:
            pieces = [piece async for piece in front.pieces(asked, index, turn)]
            dones += [piece.done for piece in pieces if piece.done is not None]
            choices.append(asked.shape.choice(index, pieces))
    return asked.shape.whole(choices, usage(dones, asked.body.n))


async def _stream(front: ChatFront, asked: _ValidatedRequest, outgoing: EventQueue) -> None:
    """Add the events of all choices. The turn ends with the last token, or soon after the reader stops."""
    dones: list[ChatDone] = []
    async with front.queue.turn(asked.caller, asked.size) as turn:
        for index in asked.choices:
            async with contextlib.aclosing(front.pieces(asked, index, turn)) as pieces:
                async for chunk in _chunks(asked, index, pieces, dones):
                    if outgoing.full:
                        await front.queue.wait_for_reader(outgoing.room, turn)
                    outgoing.add(_event(chunk))
    options = asked.body.stream_options
    if options is not None and options.include_usage:
        outgoing.add(_event(asked.shape.last(usage(dones, asked.body.n))))
    outgoing.add("data: [DONE]\n\n")


async def _chunks(
    asked: _ValidatedRequest, index: int, pieces: AsyncIterator[Piece], dones: list[ChatDone]
) -> AsyncIterator[dict[str, Any]]:
    opening = asked.shape.opening(index)
    async for piece in pieces:
        if opening is not None:
            yield opening
            opening = None
        if piece.done is not None:
            dones.append(piece.done)
        if piece.text or piece.calls or piece.token or piece.done:
            yield asked.shape.chunk(index, piece)


async def _sent(outgoing: EventQueue) -> AsyncIterator[bytes]:
    """The events of a stream; a later error becomes its last event."""
    try:
        async for chunk in outgoing.chunks():
            yield chunk
    except EdgeflowError as error:
        yield _event(error_body(error.code, error.text, getattr(error, "field", ""))).encode()


def _event(value: dict[str, Any]) -> str:
    return f"data: {json.dumps(value, ensure_ascii=False, separators=(',', ':'))}\n\n"
