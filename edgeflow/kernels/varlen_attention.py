"""Attention within sequences laid one after the other, not causal: vision towers, and windows of them.

(q, k, v [L, H, D], starts [N + 1] int32 on the device, longest) → [L, H, D]. Sequence n holds rows
starts[n] .. starts[n+1]-1, none where they are equal; longest: the most rows a sequence has. Scores are scaled by
D^-1/2. q, k and v may be views of one projection; their last dimension is contiguous.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from edgeflow.kernels.layout import on_device

VarlenAttention = Callable[[Tensor, Tensor, Tensor, Tensor, int], Tensor]


def reference(q: Tensor, k: Tensor, v: Tensor, starts: Tensor, longest: int) -> Tensor:  # noqa: ARG001
    """Sequence by sequence, written out."""
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    bounds = starts.tolist()
    for first, stop in pairwise(bounds):
        scores = torch.einsum("qhd,khd->hqk", q[first:stop], k[first:stop]) / q.shape[-1] ** 0.5
        out[first:stop] = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v[first:stop])
    return out


def sdpa(q: Tensor, k: Tensor, v: Tensor, starts: Tensor, longest: int) -> Tensor:
    """torch's own, sequences of one length as a batch; the host reads `starts` where they differ."""
    if len(q) == longest * (len(starts) - 1):
        return _batch(q, k, v, longest)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    by_length: dict[int, list[int]] = {}
    for first, stop in pairwise(starts.tolist()):
        by_length.setdefault(stop - first, []).extend(range(first, stop))
    for length, places in by_length.items():
        if length:
            rows = on_device(places, q.device)
            out[rows] = _batch(q[rows], k[rows], v[rows], length)
    return out


def _batch(q: Tensor, k: Tensor, v: Tensor, length: int) -> Tensor:
    """Of sequences that are all as long."""
    a, b, c = (each.reshape(-1, length, *each.shape[1:]).transpose(1, 2) for each in (q, k, v))
    return F.scaled_dot_product_attention(a, b, c).transpose(1, 2).flatten(0, 1)
