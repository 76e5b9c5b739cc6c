"""Passes of every kind that chat will need, run before they are timed, so that none compiles a kernel while robots are
served."""

from __future__ import annotations

import torch

from edgeflow.engine.chat.engine import ChatEngine, Source
from edgeflow.engine.chat.generate import Generation, generate
from edgeflow.engine.sampling.params import SamplingParams
from edgeflow.models.prompt import Prompt
from edgeflow.scheduler.plan import Pass, Segment

LEAST_END = 64


def run_each_kind(engine: ChatEngine, chunk: int) -> None:
    """Run chunks and decode rows in slot 0, which must hold nothing yet.

    Kernels differ by how far the slot is read, and by whether the number of rows is even; the greedy operator by
    whether scores are the logits themselves or derived from them, as under a mask.
    """
    source = Source(engine.model, _anything(engine))
    for end in _ends(engine.kv.capacity):
        for rows in sorted({1, min(chunk, end - 1), max(min(chunk, end - 1) - 1, 1)}):
            _run(engine, source, Segment(sequence=0, slot=0, start=end - 1 - rows, length=rows, stage=0))
        _run(engine, source, Segment(sequence=0, slot=0, start=end - 1, length=1, stage=1))
    if engine.kv.format.memory is not None:
        _run_fold(engine, engine.placement.unfolded(engine.kv.capacity))
    _run_masked(engine, Segment(sequence=0, slot=0, start=engine.kv.capacity - 1, length=1, stage=1))


def _ends(capacity: int) -> list[int]:
    """Positions to read up to: powers of two, and the end of the slot."""
    powers = [1 << power for power in range(capacity.bit_length())]
    return [*(end for end in powers if LEAST_END <= end < capacity), capacity]


def _anything(engine: ChatEngine) -> Prompt:
    rows = engine.kv.capacity
    return Prompt((0,) * rows, torch.arange(rows)[None])


def _run_fold(engine: ChatEngine, unfolded: int) -> None:
    """The end of the longest prompt that is not folded, and two tokens: the second one folds."""
    prompt = engine.model.prompt([0] * unfolded)
    params = SamplingParams(max_tokens=2)
    request = Generation(engine, prompt, params, known=len(prompt) - 1, ignore_stop=True)
    for _ in generate(engine, request, unfolded):
        pass
    engine.clear(0)


def _run_masked(engine: ChatEngine, segment: Segment[int]) -> None:
    ticket = engine.launch(Pass(0, (segment,)), {}, waits=True)
    engine.collect(engine.sample(ticket, torch.ones(1, engine.model.config.vocab_size, dtype=torch.bool)))


def _run(engine: ChatEngine, source: Source, segment: Segment[int]) -> None:
    engine.collect(engine.launch(Pass(0, (segment,)), {0: source}))
