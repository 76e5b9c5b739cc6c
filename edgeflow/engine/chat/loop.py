"""The chat plane of the worker: one request at a time, in passes that fit the gaps between control's.

Order, chunks and slots are planned in integers (scheduler/requests.py). Only a change of a prefix writes the rows of
that prefix again; it is queued like a request. Resizing four images of four megapixels takes hundreds of milliseconds,
longer than a gap between control passes: it is done in a thread, by operations that release the interpreter's lock.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from edgeflow.engine.chat.engine import ChatEngine, PromptSource
from edgeflow.engine.chat.generate import FixedPrefix, most_tokens
from edgeflow.engine.chat.grammar import Grammar, Grammars
from edgeflow.engine.executor import Running, Ticket
from edgeflow.engine.sampling.params import SamplingParams
from edgeflow.engine.sampling.sample import Sampled, TokenLogprobs
from edgeflow.ipc.chat_messages import ChatDone, ChatRejected, ChatStart, ChatToken, PrefixSet, SetPrefix
from edgeflow.ipc.messages import Message
from edgeflow.models.prompt import Prompt
from edgeflow.scheduler.cost import ChunkTimes, PassSample
from edgeflow.scheduler.drafting import DraftCounts
from edgeflow.scheduler.plan import Pass
from edgeflow.scheduler.requests import RequestPlan, Requests
from edgeflow_client.clock import Clock
from edgeflow_client.errors import InvalidArgument, NotFound, RequestError
from edgeflow_client.reasons import Reason

NICE = 5
"""Priority of the thread. Mild on purpose: between its operations it holds the interpreter's lock for microseconds, and
with a much lower priority the loop could wait for that lock while other processes run."""


def images_of(message: ChatStart) -> list[NDArray[np.uint8]]:
    """The images of a request, RGB [H, W, 3], over its payload; InvalidArgument where that is too short."""
    images, place = [], 0
    for height, width in zip(message.sizes[::2], message.sizes[1::2], strict=True):
        size = height * width * 3
        if size <= 0 or place + size > len(message.payload):
            raise InvalidArgument("has fewer bytes than its images", field="payload")
        pixels = np.frombuffer(message.payload, np.uint8, size, place)
        images.append(pixels.reshape(height, width, 3))
        place += size
    return images


def _yield_to_the_loop() -> None:
    """Give this thread an ordinary, slightly lower priority, whatever the worker itself was given."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
            os.setpriority(os.PRIO_PROCESS, 0, NICE)  # on Linux: of the calling thread


@dataclass(slots=True, kw_only=True)
class _PlaneRequest:
    """A request and its times in nanoseconds on the worker's clock; 0 = not yet."""

    message: ChatStart
    arrived_ns: int
    started_ns: int = 0
    first_token_ns: int = 0
    grammar: Future[Grammar] | None = None
    prompt: Future[Prompt] | None = None  # of a request with images
    plan: RequestPlan | None = None

    @property
    def constraint(self) -> Grammar | None:
        return self.grammar.result() if self.grammar is not None else None


class ChatLoop:
    """Serves requests in order of arrival; the first runs to its end. The worker's loop runs the passes it plans."""

    def __init__(
        self,
        *,
        name: str,
        engine: ChatEngine,
        prefixes: Mapping[str, FixedPrefix],
        times: ChunkTimes,
        chunk: int,
        clock: Clock,
        publish: Callable[[Message], None],
        grammars: Grammars,
    ) -> None:
        self.wake: Callable[[], None] = lambda: None  # called from another thread when a request becomes ready
        self.engine = engine
        self.times = times
        self.chunk = chunk
        rows = {each.slot: len(each.prompt) for each in prefixes.values()}
        self.requests = Requests(rows, engine.placement, engine.rule())
        self._name = name
        self._slots = {slot_id: prefix.slot for slot_id, prefix in prefixes.items()}
        self._slot_ids = {slot: slot_id for slot_id, slot in self._slots.items()}
        self._prompts = {prefix.slot: prefix.prompt for prefix in prefixes.values()}
        self._clock = clock
        self._publish = publish
        self._grammars = grammars
        self._images = ThreadPoolExecutor(1, thread_name_prefix="images", initializer=_yield_to_the_loop)
        self._waiting: dict[int, _PlaneRequest | SetPrefix] = {}
        self._sources: dict[int, PromptSource] = {}  # of the request that runs
        self._masked: Ticket[int] | None = None

    @property
    def idle(self) -> bool:
        """True when no request is waiting or running."""
        return not self._waiting

    @property
    def masked(self) -> Pass[int] | None:
        """The launched pass that waits for its mask."""
        return self._masked.planned if self._masked is not None else None

    @property
    def busy(self) -> bool:
        """True when there is something to run; a request may wait for its images or its grammar."""
        if self.requests.first is not None:
            waiting = self._waiting[self.requests.first]
            parts = () if isinstance(waiting, SetPrefix) else (waiting.prompt, waiting.grammar)
            return all(each is None or each.done() for each in parts)
        return self._may_go_on

    def start(self, message: ChatStart) -> None:
        """A request arrives. The chat front sends one at a time, so few prompts with images are in memory at once."""
        request = _PlaneRequest(message=message, arrived_ns=self._clock.now_ns())
        if message.sizes:
            request.prompt = self._images.submit(lambda: self.engine.model.prompt(message.ids, images_of(message)))
            request.prompt.add_done_callback(lambda _: self.wake())
        if message.schema:
            request.grammar = self._grammars.compile(message.schema, lambda: self.wake())
        self._waiting[message.request] = request
        self.requests.offer(message.request)

    def set_prefix(self, message: SetPrefix) -> None:
        """Replace a slot's prefix, once the requests before it are answered."""
        if message.slot not in self._slots:
            known = ", ".join(self._slots) or "none is declared"
            self._reject(message.request, NotFound(f"there is no slot of that name; known: {known}", field="slot"))
        else:
            self._waiting[message.request] = message
            self.requests.offer(message.request)

    def stop(self, request: int, reason: str) -> None:
        """End a request; an unknown number is ignored."""
        found = self._waiting.get(request)
        if isinstance(found, _PlaneRequest):
            if found.prompt is not None:
                found.prompt.cancel()  # otherwise the images of the next request would wait for these
            if found.plan is not None:
                self._masked = None
            self._end(request)
            self._done(found, reason)

    def launch(self, most: int, turn_ns: int) -> Running[int] | None:
        """Start the next pass, of at most `most` rows of a prompt, or go on with one whose mask has come.

        None where there is nothing to commit: the first request was rejected, or a pass waits for its mask.
        turn_ns: when this turn of the loop began.
        """
        begun, masked = self.engine.stamp(), self._masked
        try:
            ticket = self._start(most) if masked is None else self._sample(masked)
        except RequestError as error:
            running = self.requests.running
            number = running.number if running is not None else self.requests.first
            if number is not None:
                self._fail(number, error)
            return None
        if ticket is None:
            return None
        with_images = any(self._sources[each.sequence].prompt.images for each in ticket.planned.prefills)
        return Running.of(ticket, turn_ns, begun, apart=masked is not None, prepared=with_images)

    def commit(self, running: Running[int]) -> PassSample | None:
        """Wait for a pass, and publish its tokens; returns its time, None where it waited for a mask or failed."""
        planned = running.ticket.planned
        try:
            (outcome,) = self.engine.collect(running.ticket)
        except RequestError as error:
            self._fail(planned.segments[0].sequence, error)
            return None
        tokens = self.requests.commit(planned.number, [outcome])
        found = self._waiting.get(outcome.sequence)
        if isinstance(found, _PlaneRequest) and found.plan is not None:
            self._answer(found, found.plan, tokens, outcome)
        elif isinstance(found, SetPrefix) and self.requests.running is None:
            self._prefix_computed(found)
        if running.apart:
            return None
        on_device = self.engine.launch_ahead > 0
        return running.sample(planned.several, planned.single, self._clock.now_ns(), on_device=on_device)

    def _start(self, most: int) -> Ticket[int] | None:
        first = self.requests.first
        if first is not None:
            waiting = self._waiting[first]
            if isinstance(waiting, SetPrefix):
                self._begin_prefix(waiting)
            else:
                self._begin_request(first, waiting)
        planned = self.requests.plan(most)
        if planned is None:
            return None
        constraint = self._constraint
        # The forward pass needs no mask: it runs while the grammar process computes one, and only sampling waits.
        waits = constraint is not None and planned.segments[0].samples > 0
        ticket = self.engine.launch(planned, self._sources, waits=waits)
        self._masked = ticket if waits else None
        return None if waits else ticket

    def _sample(self, ticket: Ticket[int]) -> Ticket[int]:
        self._masked = None
        constraint = self._constraint
        if constraint is None:
            raise ValueError("a pass waits for a mask that nobody makes")
        return self.engine.sample(ticket, constraint.allowed())

    def _answer(self, request: _PlaneRequest, plan: RequestPlan, tokens: Sequence[int], outcome: Sampled[int]) -> None:
        if request.constraint is not None and tokens and plan.finish is None:
            request.constraint.accept(tokens, outcome.drafts)
        for index, token in enumerate(tokens):
            self._tell(request, token, outcome.logprobs[index] if outcome.logprobs else None)
        if plan.finish is not None:
            self._end(plan.number)
            self._done(request, plan.finish.value)

    @property
    def _constraint(self) -> Grammar | None:
        """The grammar of the request that runs."""
        running = self._waiting[self.requests.running.number] if self.requests.running is not None else None
        return running.constraint if isinstance(running, _PlaneRequest) else None

    @property
    def _may_go_on(self) -> bool:
        """False where all passes are launched, or the grammar must first see the tokens of a pass in flight, or make a
        mask.
        """
        plan, constraint = self.requests.running, self._constraint
        if constraint is not None and self._masked is not None:
            return constraint.ready
        return plan is not None and not (plan.complete or plan.is_blocked) and (constraint is None or not plan.passes)

    def _begin_prefix(self, message: SetPrefix) -> None:
        """Drop the old prefix and begin the new one; InvalidArgument, before anything is changed, where that does
        not fit.
        """
        slot, capacity = self._slots[message.slot], self.engine.kv.positions
        prompt = self.engine.model.prompt(message.ids) if message.ids else None
        if prompt is not None and len(prompt) >= capacity:
            text = f"has {len(prompt)} tokens, the limit is {capacity - 1}"
            raise InvalidArgument(text, field="prefix", reason=Reason.CONTEXT_LENGTH_EXCEEDED)
        self._prompts.pop(slot, None)
        self.requests.begin_prefix(slot, len(prompt) if prompt is not None else 0)
        if prompt is None:
            self._prefix_set(message)
        else:
            self._prompts[slot] = prompt
            self._sources = {message.request: PromptSource(self.engine.model, prompt)}
            self.engine.clear(slot)

    def _begin_request(self, number: int, request: _PlaneRequest) -> None:
        message, model = request.message, self.engine.model
        request.started_ns = self._clock.now_ns()
        if message.model != self._name:
            raise NotFound(f"unknown chat model; the worker serves {self._name!r}", field="model")
        prompt = request.prompt.result() if request.prompt is not None else model.prompt(message.ids)
        if request.grammar is not None:
            request.grammar.result()  # raises the error of a rejected schema
        params = _params(message)
        tokens = most_tokens(prompt, params, self.engine.kv.positions)
        shared = {slot: prefix.common(prompt) for slot, prefix in self._prompts.items()}
        rule = self.engine.rule(constrained=request.grammar is not None)
        request.plan = self.requests.begin(len(prompt), tokens, model.stop_ids, shared, rule)
        self._sources = {number: PromptSource(model, prompt)}
        plan = request.plan
        if plan.prefix_slot not in (None, plan.slot):
            self.engine.lend(plan.prefix_slot, plan.slot, plan.known)
        self.engine.begin(plan.slot, params, prompt, known=plan.known)

    def _end(self, number: int) -> None:
        self.requests.drop(number)
        self._waiting.pop(number, None)

    def _prefix_computed(self, message: SetPrefix) -> None:
        slot = self._slots[message.slot]
        try:
            self.engine.check_memory(slot)
        except RequestError as error:
            del self._prompts[slot], self.requests.prefixes[slot]
            self._fail(message.request, error)
        else:
            self._prefix_set(message)

    def _prefix_set(self, message: SetPrefix) -> None:
        self._waiting.pop(message.request, None)
        self._publish(PrefixSet(message.request, message.slot, len(message.ids)))

    def _fail(self, number: int, error: RequestError) -> None:
        """End a request with an error, unless it has ended already."""
        if number in self._waiting:
            self._masked = None
            self._end(number)
            self._reject(number, error)

    def _reject(self, request: int, error: RequestError) -> None:
        self._publish(ChatRejected(request, error.code, error.text, error.field, error.reason))

    def _tell(self, request: _PlaneRequest, token: int, found: TokenLogprobs | None) -> None:
        request.first_token_ns = request.first_token_ns or self._clock.now_ns()
        most = request.message.logprobs
        top = found.top[: max(most, 0)] if found is not None else ()
        logprobs = [found.logprob, *(value for _, value in top)] if most >= 0 and found is not None else []
        self._publish(ChatToken(request.message.request, token, logprobs, [each for each, _ in top]))

    def _done(self, request: _PlaneRequest, reason: str) -> None:
        now_ns, plan, placement = self._clock.now_ns(), request.plan, self.engine.placement
        drafts, counts = self.engine.drafts, plan.drafts.counts if plan is not None else DraftCounts()
        folds = plan.folds if plan is not None else 0
        started_ns = request.started_ns or now_ns
        first_ns = request.first_token_ns or now_ns
        self._publish(
            ChatDone(
                request=request.message.request,
                reason=reason,
                prompt_tokens=plan.rows if plan is not None else 0,
                answer_tokens=plan.verified if plan is not None else 0,
                reused=plan.known if plan is not None else 0,
                slot=self._slot_ids[plan.prefix_slot] if plan and plan.prefix_slot is not None else "",
                queue_ns=started_ns - request.arrived_ns,
                prefill_ns=max(first_ns - started_ns, 0),
                decode_ns=now_ns - first_ns,
                draft=drafts.name if drafts is not None else "",
                drafted=counts.drafted,
                accepted=counts.accepted,
                draft_passes=counts.drafts,
                plain_passes=counts.plain,
                route=placement.name(plan.rows) if plan is not None else "",
                folds=folds,
                compressed=placement.compressed(folds),
            )
        )


def _params(message: ChatStart) -> SamplingParams:
    given = {each.name: getattr(message, each.name) for each in fields(SamplingParams)}
    return SamplingParams(**given | {name: None for name in ("seed", "logprobs") if given[name] < 0})
