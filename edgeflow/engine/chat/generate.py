"""Chat requests without a worker, by themselves or in shared passes: for the terminal, checks and measurements."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from edgeflow.engine.chat.engine import ChatEngine, PromptSource
from edgeflow.engine.executor import Ticket
from edgeflow.engine.sampling.params import SamplingParams
from edgeflow.engine.sampling.sample import Sampled
from edgeflow.models.prompt import Prompt
from edgeflow.scheduler.plan import Pass
from edgeflow.scheduler.requests import Finish, RequestPlan
from edgeflow_client.errors import InvalidArgument
from edgeflow_client.reasons import Reason


def most_tokens(prompt: Prompt, params: SamplingParams, capacity: int) -> int:
    """How many tokens an answer may have; InvalidArgument where the prompt does not fit a slot."""
    if len(prompt) > capacity:
        text = f"{len(prompt)} tokens, at most {capacity} are permitted"
        raise InvalidArgument(text, field="prompt", reason=Reason.CONTEXT_LENGTH_EXCEEDED)
    return min(params.max_tokens, capacity - len(prompt) + 1)


class Generation:
    """One request in one slot of an engine, and its answer so far.

    known: rows of the prompt whose KV lies in the slot already, fewer than all. prefix: rows of the prefix that they
    belong to.
    """

    def __init__(
        self,
        engine: ChatEngine,
        prompt: Prompt,
        params: SamplingParams,
        slot: int = 0,
        *,
        known: int = 0,
        prefix: int = 0,
        ignore_stop: bool = False,
    ) -> None:
        tokens = most_tokens(prompt, params, engine.kv.positions)
        stop_ids = frozenset[int]() if ignore_stop else engine.model.stop_ids
        self.plan = RequestPlan(
            number=slot,
            slot=slot,
            rows=len(prompt),
            known=known,
            tokens=tokens,
            stop_ids=stop_ids,
            route=engine.placement.route(prefix),
            rule=engine.rule(),
        )
        self.source = PromptSource(engine.model, prompt)
        self.tokens: list[int] = []
        engine.begin(slot, params, prompt, known=known)

    @property
    def finish(self) -> Finish | None:
        """The reason the answer ended; None while it goes on."""
        return self.plan.finish


@dataclass(frozen=True, slots=True)
class RequestStep:
    """The result of a pass for a request: tokens, or None for a chunk of its prompt; and the logits of its sampled rows
    [n, V], where kept.
    """

    sampled: Sampled[int] | None
    logits: Tensor | None


def run_pass(engine: ChatEngine, generations: Sequence[Generation], chunk: int) -> list[RequestStep]:
    """Run one pass of requests in different slots, each by a chunk of at most `chunk` rows or a token."""
    ticket = _launch(engine, generations, chunk)
    return _commit(engine, ticket, generations) if ticket is not None else []


def generate(engine: ChatEngine, generation: Generation, chunk: int) -> Iterator[Sampled[int] | None]:
    """Run a request by itself, as the worker does; one item per pass: tokens, or None for a chunk of the prompt."""
    running: deque[Ticket[int]] = deque()
    while generation.finish is None:
        launched = _launch(engine, [generation], chunk)
        if launched is not None:
            running.append(launched)
        while len(running) > (engine.launch_ahead if launched is not None else 0) and generation.finish is None:
            (step,) = _commit(engine, running.popleft(), [generation])
            yield step.sampled


def _launch(engine: ChatEngine, generations: Sequence[Generation], chunk: int) -> Ticket[int] | None:
    """Start a pass; None where all rows of all requests are in flight."""
    planned = [each.plan.next(chunk) for each in generations]
    segments = sorted((each for each in planned if each is not None), key=lambda each: each.stage > 0)
    if not segments:
        return None
    sources = {each.plan.slot: each.source for each in generations}
    return engine.launch(Pass(0, tuple(segments)), sources)


def _commit(engine: ChatEngine, ticket: Ticket[int], generations: Sequence[Generation]) -> list[RequestStep]:
    """The results of those requests that share the pass."""
    first, rows = 0, dict[int, Tensor]()
    for segment, samples in zip(ticket.planned.segments, ticket.shape.samples, strict=False):
        if ticket.logits is not None and samples:
            rows[segment.sequence] = ticket.logits[first : first + segment.samples]
        first += samples
    outcomes = {outcome.sequence: outcome for outcome in engine.collect(ticket)}
    shared = [(each, each.plan.slot) for each in generations if each.plan.slot in outcomes]
    return [_step(each, outcomes[slot], rows.get(slot)) for each, slot in shared]


def _step(generation: Generation, outcome: Sampled[int], logits: Tensor | None) -> RequestStep:
    tokens = generation.plan.commit(outcome)
    generation.tokens += tokens
    kept = replace(outcome, tokens=tokens, logprobs=outcome.logprobs[: len(tokens)])
    return RequestStep(kept if tokens else None, logits)


@dataclass(frozen=True, slots=True)
class FixedPrefix:
    """A beginning that many prompts share. Its KV lies in `slot`."""

    prompt: Prompt
    slot: int

    def compute(self, engine: ChatEngine, chunk: int) -> Iterator[int]:
        """Fill the slot; one item per pass: the number of rows computed so far. As `ChatEngine.check_memory`."""
        plan = RequestPlan(
            number=0, slot=self.slot, rows=len(self.prompt), route=engine.placement.route(), rule=engine.rule()
        )
        source = PromptSource(engine.model, self.prompt)
        engine.clear(self.slot)
        while (segment := plan.next(chunk)) is not None:
            engine.collect(engine.launch(Pass(0, (segment,)), {0: source}))
            yield plan.place
        engine.check_memory(self.slot)

    def lend(self, engine: ChatEngine, prompt: Prompt, slot: int) -> int:
        """Bring what `prompt` shares with this prefix into its slot; returns how many rows are known then.

        Rows that cannot be reused are computed again. In the prefix's own slot nothing moves; there the whole prefix
        must be shared, as the rest is written over.
        """
        shared, placement = min(self.prompt.common(prompt), len(prompt) - 1), engine.placement
        if slot == self.slot and not placement.shares_slots:
            raise ValueError("a prompt that folds cannot run in the prefix's slot")
        known = placement.reusable(len(self.prompt), shared, len(prompt))
        if slot != self.slot:
            engine.lend(self.slot, slot, known)
        elif shared < min(len(self.prompt), len(prompt) - 1):
            raise ValueError("a prompt that leaves the prefix cannot run in the prefix's slot")
        return known
