"""Which drafts of a verification are accepted: the longest path on which each is the token that the row before gives.

A draft is compared with a token that was drawn without knowledge of it, greedily or with the share of its place. So the
tokens of an answer, and their distribution, are those of decoding one by one (Leviathan et al. 2022, with a proposal
that is certain of each draft).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Accepted:
    """settled [S]: tokens that are settled, one more than drafts were accepted. path [S, W]: the rows that give them,
    the last one repeated.
    """

    settled: Tensor
    path: Tensor


def accept_chain(right: Tensor) -> Accepted:
    """right [S, R] bool: whether each row is the token that the row before it gives; that of row 0 is not read."""
    alive = torch.cat([torch.ones_like(right[:, :1]), right[:, 1:]], dim=1).long().cumprod(1)
    settled = alive.sum(1)
    at = torch.arange(right.shape[1], device=right.device)
    return Accepted(settled, torch.minimum(at, settled[:, None] - 1))


def accept_tree(right: Tensor, bits: Tensor, depth: Tensor, width: int) -> Accepted:
    """As `accept_chain`, where rows stand in trees (kernels/kv/trees.py): bits, depth [S, R]. width: W."""
    at = torch.arange(right.shape[1], device=right.device)
    of_row = torch.ones_like(bits) << at
    confirmed = torch.cat([of_row[:, :1], of_row[:, 1:] * right[:, 1:]], dim=1).sum(1, keepdim=True)
    alive = (bits & ~confirmed) == 0
    last = torch.where(alive, depth, -1).argmax(1, keepdim=True)  # siblings are different tokens: one path at most
    settled = depth.gather(1, last) + 1
    on_path = (bits.gather(1, last) >> at) & 1 == 1
    rows = torch.where(on_path, at, right.shape[1]).sort(1).values[:, :width]
    return Accepted(settled[:, 0], torch.minimum(rows, last))
