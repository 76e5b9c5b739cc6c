"""Answers under a grammar by themselves, in the order of the worker's loop (engine/chat/loop.py)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from edgeflow.engine.chat.engine import ChatEngine
from edgeflow.engine.chat.generate import Generation
from edgeflow.engine.sampling.params import SamplingParams
from edgeflow.engine.sampling.sample import Sampled
from edgeflow.models.prompt import Prompt
from edgeflow.scheduler.drafting import Drafts
from edgeflow.scheduler.plan import Pass


def constrained(engine: ChatEngine, prompt: Prompt, params: SamplingParams, **options: Any) -> Generation:
    """A request whose tokens a grammar binds, to be run by `under`."""
    generation = Generation(engine, prompt, params, **options)
    generation.plan.rule = engine.rule(constrained=True)
    generation.plan.drafts = Drafts(rule=generation.plan.rule)
    return generation


def under(constraint: Any, engine: ChatEngine, generation: Generation, chunk: int) -> Iterator[Sampled[int]]:
    """Run it; one item per pass that gives tokens. constraint: a `Grammar`, or what has its `allowed` and `accept`."""
    plan = generation.plan
    while plan.finish is None:
        segment = plan.next(chunk)
        waits = segment.samples > 0
        ticket = engine.launch(Pass(0, (segment,)), {plan.number: generation.source}, waits=waits)
        (outcome,) = engine.collect(engine.sample(ticket, constraint.allowed()) if waits else ticket)
        tokens = plan.commit(outcome)
        generation.tokens += tokens
        if tokens:
            if plan.finish is None:
                constraint.accept(tokens, outcome.drafts)
            yield replace(outcome, tokens=tokens, logprobs=outcome.logprobs[: len(tokens)])
