"""The rows that a policy's language model reads for recorded frames: what the search and the report run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from edgeflow.lab.quantize.policies.served import ServedPolicy

BATCH = 16
"""Frames of equal length that pass through a block together."""
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Batches of frames. hidden [B, L, E]: the rows that enter the first block, float32."""

    hidden: tuple[Tensor, ...]

    @property
    def longest(self) -> int:
        """The most rows of a frame."""
        return max(each.shape[1] for each in self.hidden)


@dataclass(frozen=True, slots=True, eq=False)
class ActionRows(Rows):
    """Rows of frames that are answered with tokens. counted [B, L] bool: the rows whose outputs are sampled; tokens
    [B, K] int64: those that the float policy chose."""

    counted: tuple[Tensor, ...]
    tokens: tuple[Tensor, ...]


def action_rows(served: ServedPolicy) -> ActionRows:
    """The rows of each observation's prompt and action tokens."""
    batches = _batches([(len(rows), (rows, tokens)) for rows, tokens in served.token_rows()])
    tokens = tuple(torch.tensor([each for _, each in batch]) for batch in batches)
    hidden = tuple(torch.stack([rows for rows, _ in batch]) for batch in batches)
    return ActionRows(hidden, tuple(map(_last, hidden, tokens)), tokens)


def prefix_rows(served: ServedPolicy) -> Rows:
    """The rows of each observation's prefix."""
    return Rows(tuple(map(torch.stack, _batches([(len(rows), rows) for rows in served.prefix_rows()]))))


def _last(hidden: Tensor, tokens: Tensor) -> Tensor:
    """The last K of L rows of each frame: the row before an action token gives it."""
    counted = torch.zeros(hidden.shape[:2], dtype=torch.bool)
    counted[:, -tokens.shape[1] :] = True
    return counted


def _batches(items: Sequence[tuple[int, Item]]) -> list[list[Item]]:
    """Items by length, at most BATCH of them together."""
    by_length: dict[int, list[Item]] = {}
    for length, item in items:
        by_length.setdefault(length, []).append(item)
    return [alike[at : at + BATCH] for alike in by_length.values() for at in range(0, len(alike), BATCH)]
