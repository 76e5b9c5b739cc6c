"""Greedy choice over a slice of the vocabulary, in two launches and without a host copy.

The first finds the best of each block of a row, the second the best of the blocks. Equal logits: the lowest id.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from edgeflow.kernels.triton.launch import cdiv, power_of_two


@triton.jit
def _best_of_block(logits, best, where, sound, first, stop, V, BLOCK: tl.constexpr):
    """Grid [N, blocks]. logits [N, V]; best, where, sound [N, blocks]: largest logit, its id, whether none is NaN."""
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    blocks = tl.num_programs(1)
    column = first + block * BLOCK + tl.arange(0, BLOCK)
    kept = column < stop
    value = tl.load(logits + row * V + column, mask=kept, other=-float("inf")).to(tl.float32)
    broken = value != value
    value = tl.where(broken, float("inf"), value)
    largest = tl.max(value, 0)
    chosen = tl.min(tl.where(kept & (value == largest), column, stop), 0)
    tl.store(best + row * blocks + block, largest)
    tl.store(where + row * blocks + block, chosen)
    tl.store(sound + row * blocks + block, tl.max(broken.to(tl.int32), 0) == 0)


@triton.jit
def _best_of_blocks(best, where, sound, ids, finite, blocks, stop, BLOCK: tl.constexpr):
    """Grid [N]. best, where, sound [N, blocks]; ids, finite [N]; BLOCK: power of two that covers `blocks`."""
    row = tl.program_id(0).to(tl.int64)
    block = tl.arange(0, BLOCK)
    kept = block < blocks
    value = tl.load(best + row * blocks + block, mask=kept, other=-float("inf"))
    column = tl.load(where + row * blocks + block, mask=kept, other=stop)
    whole = tl.load(sound + row * blocks + block, mask=kept, other=1).to(tl.int32)
    largest = tl.max(value, 0)
    chosen = tl.min(tl.where(kept & (value == largest), column, stop), 0)
    bounded = (largest < float("inf")) & (largest > -float("inf"))
    tl.store(ids + row, chosen.to(tl.int64))
    tl.store(finite + row, bounded & (tl.min(whole, 0) == 1))


def greedy(logits: Tensor, first: int, stop: int, *, block: int = 4096) -> tuple[Tensor, Tensor]:
    """logits [N, V], contiguous → ids [N] int64 of first .. stop, finite [N] bool."""
    rows, vocabulary = logits.shape
    device = logits.device
    ids = torch.empty(rows, dtype=torch.long, device=device)
    finite = torch.empty(rows, dtype=torch.bool, device=device)
    blocks = cdiv(stop - first, block)
    best = torch.empty(rows, blocks, dtype=torch.float32, device=device)
    where = torch.empty(rows, blocks, dtype=torch.int32, device=device)
    sound = torch.empty(rows, blocks, dtype=torch.bool, device=device)
    if rows:
        _best_of_block[(rows, blocks)](logits, best, where, sound, first, stop, vocabulary, block)
        _best_of_blocks[(rows,)](best, where, sound, ids, finite, blocks, stop, power_of_two(blocks))
    return ids, finite
