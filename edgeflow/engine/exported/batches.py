"""The steps of a pass in batches of fixed sizes, and the graph of a batch over slots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from edgeflow.artifacts.manifest import Array, kv_arrays, zeros
from edgeflow.artifacts.sessions import BoundGraph, GraphSession

BOUND = 256
"""Bindings of a graph that are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBatch:
    """A run of a step's graph. size: B, of the graph. rows: which of the pass's rows it takes. lines: the line of the
    batch of each. first: the slot of line 0, where lines are slots that follow each other; None where the keys and
    values of each row are copied into the batch.
    """

    size: int
    rows: tuple[int, ...]
    lines: tuple[int, ...]
    first: int | None


def step_batches(slots: Sequence[int], sizes: Sequence[int], there: int) -> list[StepBatch]:
    """The batches of rows in these slots. sizes: of the graphs, ascending. there: slots of the store.

    Each batch is of the smallest size that holds what is left, and of the largest where none does. Where the slots of
    its rows lie within that many, the batch is a run of slots in place; lines between them are computed and ignored.
    """
    left = sorted(range(len(slots)), key=lambda row: slots[row])
    found = []
    while left:
        size = next((each for each in sizes if each >= len(left)), sizes[-1])
        rows, left = left[:size], left[size:]
        found.append(_batch(rows, [slots[row] for row in rows], size, there))
    return found


def _batch(rows: Sequence[int], slots: Sequence[int], size: int, there: int) -> StepBatch:
    first = min(slots[0], there - size)
    lines = tuple(slot - first for slot in slots)
    if first < 0 or lines[-1] >= size or len(set(slots)) < len(slots):
        return StepBatch(size=size, rows=tuple(rows), lines=tuple(range(len(rows))), first=None)
    return StepBatch(size=size, rows=tuple(rows), lines=lines, first=first)


class BatchedStep:
    """The graph of a step of one batch, over the slots of a store. kv [layers, 2, S, T, KH, D]

    _inputs: besides keys and values. _outputs: all that it gives, set by the class of a kind of step.
    """

    _outputs: dict[str, Array]

    def __init__(self, session: GraphSession, kv: Array) -> None:
        self._kv = kv
        self._session = session
        own = [each for each in session.graph.inputs if not each.name.startswith(("key.", "value."))]
        self._inputs = {each.name: zeros(each) for each in own}
        self._copied: Array = np.zeros(0, np.float32)  # takes memory once it is needed
        self._over = lru_cache(BOUND)(self._bound)

    def _run(self, batch: StepBatch, slots: Sequence[int]) -> None:
        """Run the graph over slots in place, or over copies of the slots of the batch's rows."""
        if batch.first is None:
            if not self._copied.size:
                self._copied = np.zeros((*self._kv.shape[:2], batch.size, *self._kv.shape[3:]), np.float32)
            for line, slot in enumerate(slots):
                self._copied[:, :, line] = self._kv[:, :, slot]
        self._over(batch.first).run()

    def _bound(self, first: int | None) -> BoundGraph:
        past = self._copied if first is None else self._kv[:, :, first : first + self._session.graph.batch]
        return self._session.bind(self._inputs | kv_arrays(past), self._outputs)
