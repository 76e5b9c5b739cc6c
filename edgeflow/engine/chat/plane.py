"""The chat plane of the worker: one request at a time, in steps that fit the gaps between control passes.

Slot 0 is for prompts without a fixed prefix; each declared prefix has its own slot, filled at start. A request that
begins with a whole prefix runs in that prefix's slot, after it. Only a change of the prefix writes the prefix's rows
again; it is queued like a request.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from edgeflow.clock import Clock
from edgeflow.engine.chat.grammar import Grammar, Grammars
from edgeflow.engine.chat.image_prompts import ImagePrompts
from edgeflow.engine.chat.prefix_change import PrefixChange
from edgeflow.engine.generate import FixedPrefix, Generation, RunPass, run_pass
from edgeflow.engine.sampling import SampledToken
from edgeflow.engine.sampling_params import SamplingParams
from edgeflow.errors import NotFound, RequestError
from edgeflow.ipc.messages import ChatDone, ChatRefused, ChatStart, ChatToken, Message, PrefixSet, SetPrefix
from edgeflow.kernels.kv import KVSlots
from edgeflow.models.chat import ChatModel
from edgeflow.models.prompt import Prompt


@dataclass(frozen=True, slots=True)
class StepCost:
    """The cost of a chat step, in nanoseconds: one decode row, and each further row of a prompt's chunk."""

    step_ns: int
    row_ns: int

    def rows_in(self, room_ns: int, most: int) -> int:
        """The number of prompt rows that fit into `room_ns`, at least one and at most `most`."""
        return max(1, min(most, (room_ns - self.step_ns) // max(self.row_ns, 1)))

    def of_rows(self, rows: int) -> int:
        """The expected duration of a step of so many rows, in nanoseconds."""
        return self.step_ns + (rows - 1) * self.row_ns


@dataclass(frozen=True, slots=True)
class Prefix:
    """A declared fixed prefix whose KV lies in its slot."""

    slot_id: str
    fixed: FixedPrefix


@dataclass(slots=True, kw_only=True)
class _Request:
    """A request and its times in nanoseconds on the worker's clock; 0 = not yet."""

    message: ChatStart
    arrived_ns: int
    started_ns: int = 0
    first_token_ns: int = 0
    grammar: Future[Grammar] | None = None
    prompt: Future[Prompt] | None = None  # of a request with images
    generation: Generation | None = None
    prefix: Prefix | None = None
    prompt_tokens: int = 0
    reused: int = 0

    @property
    def ready(self) -> bool:
        """True when the next step can run: images are resized, and the grammar knows the next tokens."""
        if self.prompt is not None and not self.prompt.done():
            return False
        grammar = self.grammar
        return grammar is None or (grammar.done() and (grammar.exception() is not None or grammar.result().ready))


class ChatPlane:
    """Serves requests in order of arrival; the first runs to its end. `step` runs one pass."""

    def __init__(
        self,
        *,
        name: str,
        model: ChatModel,
        kv: KVSlots,
        prefixes: Sequence[Prefix],
        cost: StepCost,
        chunk: int,
        clock: Clock,
        publish: Callable[[Message], None],
        grammars: Grammars,
        decode: ChatModel | None = None,
        run: RunPass = run_pass,
    ) -> None:
        self.cost = cost
        self._run = run
        self.wake: Callable[[], None] = lambda: None  # called from another thread when a request becomes ready
        self._name = name
        self._model = model
        self._kv = kv
        self._slots = {prefix.slot_id: prefix.fixed.slot for prefix in prefixes}
        self._prefixes = _longest_first(prefixes)
        self._chunk = chunk
        self._clock = clock
        self._publish = publish
        self._grammars = grammars
        self._image_prompts = ImagePrompts()
        self._decode = decode
        self._waiting: deque[_Request | PrefixChange] = deque()

    @property
    def busy(self) -> bool:
        """True when there is a step to run; the first request may wait for its images or its grammar."""
        if not self._waiting:
            return False
        first = self._waiting[0]
        return isinstance(first, PrefixChange) or first.ready

    def start(self, message: ChatStart) -> None:
        """A request arrives. The chat front sends one at a time, so few prompts with images are in memory at once."""
        request = _Request(message=message, arrived_ns=self._clock.now_ns())
        if message.sizes:
            request.prompt = self._image_prompts.build(self._model, message, lambda: self.wake())
        if message.schema:
            request.grammar = self._grammars.compile(message.schema, lambda: self.wake())
        self._waiting.append(request)

    def set_prefix(self, message: SetPrefix) -> None:
        """Replace a slot's prefix, once the requests before it are answered."""
        slot = self._slots.get(message.slot)
        if slot is None:
            known = ", ".join(self._slots) or "none is declared"
            self._refuse(message.request, NotFound(f"there is no slot of that name; known: {known}", field="slot"))
        else:
            self._waiting.append(PrefixChange(message, slot))

    def stop(self, request: int, reason: str) -> None:
        """End a request; an unknown number is ignored."""
        for each in self._waiting:
            if isinstance(each, _Request) and each.message.request == request:
                self._waiting.remove(each)
                if each.prompt is not None:
                    each.prompt.cancel()  # else the images of the next request would wait for these
                self._done(each, reason)
                return

    def step(self, room_ns: int) -> int:
        """Run one pass of the first request: a chunk of its prompt that fits the room, or a decode row.

        Returns its cost by the cost model, in nanoseconds; 0 where nothing was computed.
        """
        first, most = self._waiting[0], self.cost.rows_in(room_ns, self._chunk)
        try:
            rows = self._step_change(first, most) if isinstance(first, PrefixChange) else self._step(first, most)
        except RequestError as error:
            self._waiting.popleft()
            self._refuse(first.message.request, error)
            return 0
        return self.cost.of_rows(rows) if rows else 0

    def _step(self, request: _Request, most: int) -> int:
        generation = request.generation or self._begin(request)
        decoder, rows = generation.decoder, generation.rows(most)
        (logits,) = self._run(decoder, self._kv, [rows])
        sampled = generation.take(logits)
        if sampled is not None:
            self._tell(request, sampled)
        if generation.finish is not None:
            self._waiting.popleft()
            self._done(request, generation.finish.value)
        return rows.span.length

    def _step_change(self, change: PrefixChange, most: int) -> int:
        """Compute a chunk of a new prefix. The old one is gone from the first row on; later requests wait."""
        slot_id = change.message.slot
        if not change.begun:
            change.begin(self._model, self._kv.capacity)
            self._prefixes = [prefix for prefix in self._prefixes if prefix.slot_id != slot_id]
        rows = change.step(self._model, self._kv, most)
        if not change.left:
            self._waiting.popleft()
            if change.fixed is not None:
                self._prefixes = _longest_first([*self._prefixes, Prefix(slot_id, change.fixed)])
            self._publish(PrefixSet(change.message.request, slot_id, len(change.message.ids)))
        return rows

    def _refuse(self, request: int, error: RequestError) -> None:
        self._publish(ChatRefused(request, error.code, error.text, error.field, error.reason))

    def _begin(self, request: _Request) -> Generation:
        message = request.message
        request.started_ns = self._clock.now_ns()
        if message.model != self._name:
            raise NotFound(f"unknown chat model; the worker serves {self._name!r}", field="model")
        prompt = request.prompt.result() if request.prompt is not None else self._model.prompt(message.ids)
        request.prompt_tokens = len(prompt)
        request.prefix = next((each for each in self._prefixes if _begins_with(prompt, each.fixed.prompt)), None)
        slot = 0
        if request.prefix is not None:
            slot = request.prefix.fixed.slot
            request.reused = request.prefix.fixed.lend(self._kv, prompt, slot)
        request.generation = Generation(
            self._model,
            prompt,
            _params(message),
            slot,
            self._kv.capacity,
            known=request.reused,
            constraint=request.grammar.result() if request.grammar else None,
            decode=self._decode,
        )
        return request.generation

    def _tell(self, request: _Request, sampled: SampledToken) -> None:
        request.first_token_ns = request.first_token_ns or self._clock.now_ns()
        logprobs = [] if sampled.logprob is None else [sampled.logprob, *(value for _, value in sampled.top)]
        top = [token for token, _ in sampled.top]
        self._publish(ChatToken(request.message.request, sampled.token, logprobs, top))

    def _done(self, request: _Request, reason: str) -> None:
        now_ns = self._clock.now_ns()
        started_ns = request.started_ns or now_ns
        first_ns = request.first_token_ns or now_ns
        self._publish(
            ChatDone(
                request=request.message.request,
                reason=reason,
                prompt_tokens=request.prompt_tokens,
                answer_tokens=len(request.generation.tokens) if request.generation else 0,
                reused=request.reused,
                slot=request.prefix.slot_id if request.prefix else "",
                queue_ns=started_ns - request.arrived_ns,
                prefill_ns=max(first_ns - started_ns, 0),
                decode_ns=now_ns - first_ns,
            )
        )


def _longest_first(prefixes: Sequence[Prefix]) -> list[Prefix]:
    return sorted(prefixes, key=lambda prefix: -len(prefix.fixed.prompt))


def _begins_with(prompt: Prompt, prefix: Prompt) -> bool:
    """True when a prompt begins with the whole prefix and has at least one more row."""
    return len(prefix) < len(prompt) and prefix.common(prompt) == len(prefix)


def _params(message: ChatStart) -> SamplingParams:
    return SamplingParams(
        max_tokens=message.max_tokens,
        temperature=message.temperature,
        top_p=message.top_p,
        top_k=message.top_k,
        min_p=message.min_p,
        repetition_penalty=message.repetition_penalty,
        presence_penalty=message.presence_penalty,
        frequency_penalty=message.frequency_penalty,
        seed=None if message.seed < 0 else message.seed,
        logprobs=None if message.logprobs < 0 else message.logprobs,
    )
