"""Greedy choice over a slice of the vocabulary.

(logits [N, V], first, stop) → ids [N] int64, the index of the largest of columns first .. stop-1, the lowest of equals;
finite [N] bool: that logit is finite and no logit of the slice is NaN. Both stay on the device.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Greedy = Callable[[Tensor, int, int], tuple[Tensor, Tensor]]


def reference(logits: Tensor, first: int, stop: int) -> tuple[Tensor, Tensor]:
    """Row by row; NaN counts as the largest."""
    ids, finite = [], []
    for row in logits[:, first:stop].float().cpu():
        wide = row.nan_to_num(torch.inf, torch.inf, -torch.inf)
        ids.append(first + int((wide == wide.max()).nonzero()[0]))
        finite.append(bool(row.max().isfinite()))
    return torch.tensor(ids, device=logits.device, dtype=torch.long), torch.tensor(finite, device=logits.device).bool()


def reduced(logits: Tensor, first: int, stop: int) -> tuple[Tensor, Tensor]:
    """torch's own maximum, which propagates NaN."""
    best, ids = logits[:, first:stop].max(dim=-1)
    return (ids + first if first else ids), best.isfinite()
