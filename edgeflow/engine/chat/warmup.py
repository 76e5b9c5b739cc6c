"""Passes of chat run once before they are timed, so that none compiles a kernel while robots are served."""

from __future__ import annotations

import torch

from edgeflow.engine.generate import StepRows, run_pass
from edgeflow.engine.policy import Decoder
from edgeflow.kernels.kv import KVSlots
from edgeflow.kernels.layout import Span
from edgeflow.models.chat import ChatModel

LEAST_END = 64


def run_each_kind(model: ChatModel, kv: KVSlots, decode: ChatModel, chunk: int) -> None:
    """Run chunks of `model` and decode rows of both, in slot 0, which must hold nothing yet.

    Kernels differ by how far the slot is read, by whether the number of rows is even, and for a model of images by the
    numbers per position.
    """
    components = (1,) if model.vision is None else (1, 3)
    for end in _ends(kv.capacity):
        for count in components:
            for rows in sorted({1, min(chunk, end), max(min(chunk, end) - 1, 1)}):
                _run(model.decoder, kv, Span(0, end - rows, rows), count)
            if decode is not model:
                _run(decode.decoder, kv, Span(0, end - 1, 1), count)


def _ends(capacity: int) -> list[int]:
    """Positions to read up to: powers of two, and the end of the slot."""
    powers = [1 << power for power in range(capacity.bit_length())]
    return [*(end for end in powers if LEAST_END <= end < capacity), capacity]


def _run(decoder: Decoder, kv: KVSlots, span: Span, components: int) -> None:
    device = kv.data.device
    hidden = decoder.embed(torch.zeros(span.length, dtype=torch.long, device=device))
    positions = torch.arange(span.start, span.start + span.length).expand(components, -1)
    run_pass(decoder, kv, [StepRows(span, hidden, positions, samples=True)])
