"""Batches of lines, drawn anew for each epoch; texts that are cut alike share a batch."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

from edgeflow.lab.training.gate.reading import Line

POOL: Final = 32  # batches whose lines are sorted together


class Epochs:
    """Batches of indices into lines. batch_tokens: at most, but a batch has at least one line."""

    def __init__(self, lines: Sequence[Line], batch_tokens: int, seed: int) -> None:
        self._lines, self._batch_tokens, self._seed = lines, batch_tokens, seed
        self._made: list[list[list[int]]] = []

    def steps(self, epochs: int) -> int:
        """The number of batches of the first epochs."""
        return sum(len(self._epoch(index)) for index in range(epochs))

    def batch(self, step: int) -> list[int]:
        """The lines of a step, for any number of steps."""
        epoch = 0
        while step >= len(self._epoch(epoch)):
            step -= len(self._epoch(epoch))
            epoch += 1
        return self._epoch(epoch)[step]

    def _epoch(self, index: int) -> list[list[int]]:
        while len(self._made) <= index:
            self._made.append(self._shuffled(len(self._made)))
        return self._made[index]

    def _shuffled(self, epoch: int) -> list[list[int]]:
        """One epoch: every line once."""
        draw = random.Random(f"{self._seed} {epoch}")
        order = list(range(len(self._lines)))
        draw.shuffle(order)
        batches = [batch for pool in self._cut(order, POOL) for batch in self._cut(self._sorted(pool), 1)]
        draw.shuffle(batches)
        return batches

    def _sorted(self, indices: list[int]) -> list[int]:
        return sorted(indices, key=lambda index: (self._lines[index].segments, self._lines[index].tokens, index))

    def _cut(self, order: list[int], batches: int) -> list[list[int]]:
        """Neighbours together, up to the tokens of so many batches."""
        cut: list[list[int]] = []
        room = 0
        for index in order:
            room -= self._lines[index].tokens
            if room < 0 or not cut:
                cut.append([])
                room = batches * self._batch_tokens - self._lines[index].tokens
            cut[-1].append(index)
        return cut
