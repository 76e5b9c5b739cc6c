"""Answers where numbers are rounded on the way: to 16 bits, or rows, keys and values to 8 or 4.

A float32 sum differs in its last bits between a row alone and one among others, on some processors more than on others.
A number between two steps is then rounded to the other one, and a near tie of two logits may fall the other way. So
such an answer is compared token by token with the logits of its own text: each token is the best one, or as near to it
as rounding may bring another (NEAR_TIES of edgeflow/lab/verify/comparison.py).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from edgeflow.kernels.kv.formats import KVFormat
from edgeflow.kernels.kv.layout import PackedLayout, Span
from edgeflow.models.chat import ChatModel
from edgeflow.models.prompt import Prompt

NEAR_OF_FLOATS = 2e-4
"""A near tie in float32 without any rounding, in standard deviations; passes of other shapes move a logit by 1e-5."""
NEAR_OF_ROUNDED_ROWS = 0.2
"""A near tie where rows are rounded to 8 bits before every product, in standard deviations: twice the most that a logit
moved, since flips add up from layer to layer until they are as large as the cost of rounding itself (0.11)."""


@torch.inference_mode()
def logits_of(model: ChatModel, ids: Sequence[int], kv_format: KVFormat | None = None) -> Tensor:
    """[n, V] of every row of a text, in one pass."""
    layout = PackedLayout.of([Span(0, 0, len(ids))], torch.device("cpu"))
    hidden = model.decoder.forward(model.embed(list(ids)), layout, model.decoder.kv_slots(1, len(ids), kv_format))
    return model.decoder.logits(hidden, "prefill").float()


def behind(model: ChatModel, prompt: Prompt, tokens: Sequence[int], kv_format: KVFormat | None = None) -> float:
    """How far the tokens of an answer are from the best ones, as a share of the standard deviation of their logits."""
    whole = model.prompt([*prompt.ids, *tokens])
    logits = logits_of(model, whole.ids, kv_format)[len(prompt) - 1 : -1]
    off = logits.amax(-1) - logits.gather(1, torch.tensor(tokens)[:, None])[:, 0]
    return float((off / logits.std(-1)).max())


def agreed(one: Sequence[int], other: Sequence[int]) -> int:
    """The tokens before the first that differs."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
