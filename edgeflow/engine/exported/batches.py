"""How the steps of a pass are split into batches of fixed sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


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
