"""AWQ's clip search: how far the weights of each group are clamped before they are quantised."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from edgeflow.kernels.awq import rounded

SHRINKS = tuple(1 - step / 20 for step in range(10))
SAMPLED_ROWS = 512
CHUNK_ROWS = 1024  # outputs per step of the search


def sampled(rows: Tensor) -> Tensor:
    """Every n-th of the rows [T, E], so that 512 to 1,023 remain; all of them if there are fewer than 1,024."""
    return rows[:: max(1, len(rows) // SAMPLED_ROWS)]


def moments(rows: Tensor, group: int) -> Tensor:
    """The sums of products of the inputs of each group, divided by T: from rows [T, E] to [E/G, G, G].

    The mean squared error of a group's part of a dot product is d^T M d for the error d of its weights.
    """
    parts = rows.reshape(len(rows), -1, group).transpose(0, 1)
    return torch.bmm(parts.transpose(1, 2), parts) / len(rows)


def clip_limits(weight: Tensor, rows: Tensor, group: int) -> Tensor:
    """The limit of |w| in every group: from weight [N, E] to [N, E/G]; rows [T, E] are inputs, see `sampled`.

    It tries 1.00, 0.95, ..., 0.55 of the largest |w|; the first one with the smallest error wins. The error is that of
    the group's part of the output, against the unclipped weight.
    """
    products = moments(rows, group)  # the error needs only these, so the search does not read the rows again
    return torch.cat([_limits(chunk, products, group) for chunk in torch.split(weight, CHUNK_ROWS)])


def clamped(weight: Tensor, limits: Tensor) -> Tensor:
    """A weight [N, E] clamped to plus and minus the limit of each group [N, E/G]."""
    groups = weight.view(*limits.shape, -1)
    return torch.minimum(torch.maximum(groups, -limits[..., None]), limits[..., None]).view(weight.shape)


def _limits(weight: Tensor, products: Tensor, group: int) -> Tensor:
    groups = weight.view(len(weight), -1, group)
    largest = groups.abs().amax(2)
    best, smallest = largest.clone(), torch.full_like(largest, torch.inf)
    for limits, error in _errors(weight, groups, largest, products):
        better = error < smallest  # strictly less: of equal errors, the largest limit wins
        best, smallest = torch.where(better, limits, best), torch.where(better, error, smallest)
    return best


def _errors(weight: Tensor, groups: Tensor, largest: Tensor, products: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """The limits for each shrink factor and the error of each group with them, [n, E/G] twice."""
    for shrink in SHRINKS:
        limits = largest * shrink
        values = rounded(clamped(weight, limits), groups.shape[2]).values
        off = (values.view(groups.shape) - groups).transpose(0, 1)
        yield limits, (torch.bmm(off, products) * off).sum(2).t()


def clipped_linears(names: Iterable[str]) -> list[str]:
    """The linears to clip: all except queries and keys, whose products go through a softmax."""
    return [name for name in names if not name.endswith((".q_proj", ".k_proj"))]
