"""Which drafts of a verification are accepted: the longest path on which each is the token that the row before gives.

A draft is compared with a token that was drawn without knowledge of it, greedily or with the share of its place. So the
tokens of an answer, and their distribution, are those of decoding one by one (Leviathan et al. 2022, with a proposal
that is certain of each draft).
"""

from __future__ import annotations

import torch
from torch import Tensor


def accepted_of_chain(right: Tensor) -> Tensor:
    """The tokens that each chain settles [S].

    right [S, R - 1] bool: whether each draft is the token that the row before it gives.
    """
    return 1 + right.long().cumprod(1).sum(1)


def accepted_of_tree(right: Tensor, bits: Tensor, depth: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The tokens that each tree settles [S], and the rows that give them [S, width], the last one repeated.

    right [S, R] bool: as of a chain, where the row before is the parent; that of the root is not read. bits, depth
    [S, R]: as of `DraftTrees`.
    """
    at = torch.arange(right.shape[1], device=right.device)
    of_row = torch.ones_like(bits) << at
    confirmed = torch.cat([of_row[:, :1], of_row[:, 1:] * right[:, 1:]], dim=1).sum(1, keepdim=True)
    alive = (bits & ~confirmed) == 0
    last = torch.where(alive, depth, -1).argmax(1, keepdim=True)  # siblings are different tokens: one path at most
    on_path = (bits.gather(1, last) >> at) & 1 == 1
    rows = torch.where(on_path, at, right.shape[1]).sort(1).values[:, :width]
    return depth.gather(1, last)[:, 0] + 1, torch.minimum(rows, last)
