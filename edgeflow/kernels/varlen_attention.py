"""Attention within sequences laid one after the other, not causal: vision towers, and windows of them.

(q, k, v [L, H, D], sequences) → [L, H, D]. Sequence n holds rows starts[n] .. starts[n+1]-1. Scores are scaled by
D^-1/2. q, k and v may be views of one projection; their last dimension is contiguous.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from edgeflow.kernels.kv.layout import on_device


@dataclass(frozen=True, slots=True)
class Sequences:
    """The division of rows into N sequences."""

    lengths: tuple[int, ...]
    """Rows of each, on the host, so that nothing reads the device to find them; a sequence may be empty."""
    starts: Tensor
    """[N + 1]: int32 on the device."""

    @classmethod
    def of(cls, lengths: Sequence[int], device: torch.device) -> Sequences:
        """Copies from the host: not while a graph is captured."""
        return cls(tuple(lengths), on_device([0, *accumulate(lengths)], device, torch.int32))

    @classmethod
    def equal(cls, count: int, length: int, device: torch.device) -> Sequences:
        """`count` sequences of `length` rows, made on the device."""
        starts = torch.arange(0, count * length + 1, length, dtype=torch.int32, device=device)
        return cls((length,) * count, starts)

    @property
    def longest(self) -> int:
        return max(self.lengths, default=0)


VarlenAttention = Callable[[Tensor, Tensor, Tensor, Sequences], Tensor]


def reference(q: Tensor, k: Tensor, v: Tensor, sequences: Sequences) -> Tensor:
    """Sequence by sequence, written out."""
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    for first, stop in pairwise(accumulate(sequences.lengths, initial=0)):
        scores = torch.einsum("qhd,khd->hqk", q[first:stop], k[first:stop]) / q.shape[-1] ** 0.5
        out[first:stop] = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v[first:stop])
    return out


def sdpa(q: Tensor, k: Tensor, v: Tensor, sequences: Sequences) -> Tensor:
    """torch's own attention: each run of sequences of one length is a batch of views.

    It costs least where equal lengths are neighbours; the host reads nothing.
    """
    return _by_length(_batch, q, k, v, sequences)


def products(q: Tensor, k: Tensor, v: Tensor, sequences: Sequences) -> Tensor:
    """Two products with a softmax between them, for as many heads at a time as keep their scores in the cache.

    Scores are rounded to the dtype of q less a guess of each row's largest one, near which rounding does least. On a
    CPU in bfloat16 long sequences take about two thirds of the time of torch's own attention, to which shorter ones
    are left.
    """
    return _by_length(_in_products, q, k, v, sequences)


LONG = 512  # rows from which products are quicker
SCORES = 1 << 20  # of the heads that are computed at a time: 2 MB
LARGEST = 3.0  # standard deviations of a row's scores, if they were random: a guess of the largest of a thousand


def _by_length(
    attend: Callable[[Tensor, Tensor, Tensor, int], Tensor], q: Tensor, k: Tensor, v: Tensor, sequences: Sequences
) -> Tensor:
    parts: list[Tensor] = []
    first = 0
    for length, run in groupby(sequences.lengths):
        stop = first + length * len(list(run))
        if length:
            parts.append(attend(q[first:stop], k[first:stop], v[first:stop], length))
        first = stop
    if len(parts) == 1:
        return parts[0]
    return torch.cat(parts) if parts else torch.empty(q.shape, dtype=q.dtype, device=q.device)


def _batch(q: Tensor, k: Tensor, v: Tensor, length: int) -> Tensor:
    """Attention of sequences that all have `length` rows: [n length, H, D]"""
    a, b, c = (each.view(-1, length, *each.shape[1:]).transpose(1, 2) for each in (q, k, v))
    return F.scaled_dot_product_attention(a, b, c).transpose(1, 2).flatten(0, 1)


def _in_products(q: Tensor, k: Tensor, v: Tensor, length: int) -> Tensor:
    """As `_batch`."""
    if length < LONG:
        return _batch(q, k, v, length)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    for first in range(0, len(q), length):
        rows = slice(first, first + length)
        queries, keys, values = (each[rows].transpose(0, 1).contiguous() for each in (q * q.shape[-1] ** -0.5, k, v))
        _whole_rows(queries, keys, values, out[rows].transpose(0, 1))
    return out


def _whole_rows(queries: Tensor, keys: Tensor, values: Tensor, out: Tensor) -> None:
    """One sequence [H, L, D], queries scaled."""
    heads, length, width = queries.shape
    together = max(1, min(heads, SCORES // length**2))
    room = torch.empty(together, length, length, dtype=queries.dtype, device=queries.device)
    spread = torch.linalg.vector_norm(keys, dim=(1, 2), keepdim=True, dtype=torch.float32) / (length * width) ** 0.5
    sizes = torch.linalg.vector_norm(queries, dim=-1, keepdim=True, dtype=torch.float32)
    largest = (-LARGEST * spread * sizes).to(queries.dtype)  # [H, L, 1], negative
    for head in range(0, heads, together):
        part = slice(head, head + together)
        scores = room[: len(queries[part])]
        less = largest[part].expand(-1, -1, length)
        torch.baddbmm(less, queries[part], keys[part].transpose(1, 2), out=scores)
        out[part] = torch.bmm(torch.softmax(scores, -1, out=scores), values[part])
