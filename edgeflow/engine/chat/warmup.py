"""Passes of every kind that chat will need, run before they are timed, so that none compiles a kernel while robots are
served."""

from __future__ import annotations

from itertools import product

import torch

from edgeflow.engine.chat.engine import ChatEngine, PromptSource
from edgeflow.engine.chat.generate import Generation, generate
from edgeflow.engine.sampling.params import SamplingParams
from edgeflow.models.prompt import Prompt
from edgeflow.scheduler.drafting import DraftRule
from edgeflow.scheduler.plan import Pass, Segment

LEAST_END = 64
TILE = 16


def run_each_kind(engine: ChatEngine, chunk: int) -> None:
    """Run chunks, decode rows and verifications in slot 0, which must hold nothing yet.

    Kernels differ by how far the slot is read, and by whether the number of rows is even or a multiple of 16; the
    greedy operator by whether scores are the logits themselves or derived from them, as under a mask.
    """
    capacity = engine.kv.capacity
    source = PromptSource(engine.model, Prompt((0,) * capacity, torch.arange(capacity)[None]))
    rules = {engine.rule(constrained=each) for each in (False, True)}
    for rule, end in product(sorted(rules, key=lambda rule: rule.rows), _ends(capacity)):
        for rows in sorted({1, min(chunk, end - 1), max(min(chunk, end - 1) - 1, 1)}):
            _run(engine, source, _segment(rule, end - 1 - rows, rows, stage=0))
        _run(engine, source, _segment(rule, end - 1, 1))
        for rows in _verified(min(rule.rows, end - 1)):
            _run(engine, source, _segment(rule, end - rows - 1, 1, stage=0))
            _run(engine, source, _segment(rule, end - rows, rows))
    if engine.kv.format.memory is not None:
        _run_fold(engine, engine.placement.unfolded(capacity))
    for rule in rules:
        for rows in sorted({1, min(rule.rows, capacity - 1)}):
            _run(engine, source, _segment(rule, capacity - rows - 1, 1, stage=0))
            _run_masked(engine, _segment(rule, capacity - rows, rows))


def _segment(rule: DraftRule, start: int, rows: int, stage: int = 1) -> Segment[int]:
    """Rows of a prompt, or the newest token and drafts."""
    drafts = rows - 1 if stage else 0
    return Segment(
        sequence=0,
        slot=0,
        start=start,
        length=rows,
        stage=stage,
        samples=1 + drafts,
        drafts=drafts,
        form=rule.form,
    )


def _verified(most: int) -> list[int]:
    """Rows of verifications, the newest token included: few, most, even and odd ones, and a multiple of 16."""
    return sorted(rows for rows in {2, 3, TILE, most - 1, most} if 1 < rows <= most)


def _ends(capacity: int) -> list[int]:
    """Positions to read up to: powers of two, and the end of the slot."""
    powers = [1 << power for power in range(capacity.bit_length())]
    return [*(end for end in powers if LEAST_END <= end < capacity), capacity]


def _run_fold(engine: ChatEngine, unfolded: int) -> None:
    """The end of the longest prompt that is not folded, and two tokens: the second one folds."""
    prompt = engine.model.prompt([0] * unfolded)
    params = SamplingParams(max_tokens=2)
    request = Generation(engine, prompt, params, known=len(prompt) - 1, ignore_stop=True)
    for _ in generate(engine, request, unfolded):
        pass
    engine.clear(0)


def _run_masked(engine: ChatEngine, segment: Segment[int]) -> None:
    """Run a segment whose tokens wait for a mask."""
    ticket = engine.launch(Pass(0, (segment,)), {}, waits=True)
    mask = torch.ones(segment.samples, engine.model.config.vocab_size, dtype=torch.bool)
    engine.collect(engine.sample(ticket, mask))


def _run(engine: ChatEngine, source: PromptSource, segment: Segment[int]) -> None:
    engine.collect(engine.launch(Pass(0, (segment,)), {0: source}))
