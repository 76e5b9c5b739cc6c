"""Chat requests without a worker, by themselves: for the terminal, checks and measurements."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

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

    def launch(self, engine: ChatEngine, chunk: int) -> Ticket[int] | None:
        """Start its next pass, a token or at most `chunk` rows of its prompt; None where all rows are in flight."""
        segment = self.plan.next(chunk)
        return None if segment is None else engine.launch(Pass(0, (segment,)), {segment.sequence: self.source})

    def commit(self, outcome: Sampled[int]) -> Sampled[int] | None:
        """Take the outcome of a pass; returns what became a part of the answer, None for a chunk of the prompt."""
        tokens = self.plan.commit(outcome)
        self.tokens += tokens
        return replace(outcome, tokens=tokens, logprobs=outcome.logprobs[: len(tokens)]) if tokens else None


def generate(engine: ChatEngine, generation: Generation, chunk: int) -> Iterator[Sampled[int] | None]:
    """Run a request by itself, as the worker does; one item per pass: tokens, or None for a chunk of the prompt."""
    running: deque[Ticket[int]] = deque()
    while generation.finish is None:
        launched = generation.launch(engine, chunk)
        if launched is not None:
            running.append(launched)
        while len(running) > (engine.launch_ahead if launched is not None else 0) and generation.finish is None:
            (outcome,) = engine.collect(running.popleft())
            yield generation.commit(outcome)


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
