"""The rows of passes of a flow policy: where they lie and what they see, built on the host as one array of integers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgeflow.engine.flow.frames import FlowSizes
from edgeflow.kernels.kv.layout import PackedLayout, Span
from edgeflow.kernels.kv.visibility import Visibility
from edgeflow.models.grouped import CROSS, GroupLayout

Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixSegment:
    """The prefix of a frame that begins."""

    slot: int
    rows: int
    """L_P, rows of the prefix."""
    ids: Sequence[int] = ()
    """The tokens of its text."""
    padding: int = 0
    """Rows after the text that only pad the pass. They are written after the prefix, where the steps overwrite them;
    nobody sees them."""

    @property
    def length(self) -> int:
        return self.rows + self.padding


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSegment:
    """A step of a frame."""

    slot: int
    prefix: int
    """L_P, rows of its prefix."""
    step: int
    """The number of the step, 1 to N."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCounts:
    """Row counts of a pass; what is launched over its rows follows from them alone."""

    prefixes: tuple[int, ...]
    """Rows of each prefix, padding included."""
    tokens: tuple[int, ...]
    """Tokens of each prefix, padding included."""
    steps: int
    """The number of frames that step."""
    reach: int
    """An upper bound on where rows end in their slots."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowRows:
    """The rows of a pass on the device, all int64."""

    layout: GroupLayout
    begin: Tensor
    """[B]: slots of the frames that begin."""
    slots: Tensor
    """[n]: slots of the frames that step."""
    steps: Tensor
    """[n]: the step of each of these frames, from 0."""
    ids: tuple[Tensor, ...]
    """The text tokens of each prefix."""
    segments: tuple[Sequence[PrefixSegment], Sequence[StepSegment]] | None
    """The same on the host; None in a recording, which replays others."""


class FlowLayouts:
    """Makes the rows of passes of one model. kinds: of its layers. capacity: positions of a slot, which padding must
    not leave.
    """

    def __init__(self, sizes: FlowSizes, kinds: Sequence[str], capacity: int = 1 << 30) -> None:
        self._sizes = sizes
        self._cross = CROSS in kinds
        self._capacity = capacity
        index = np.arange(sizes.rows)
        starts = np.arange(sizes.candidates)[:, None] * sizes.rows
        self._offsets: Integers = np.arange(sizes.step_rows)
        self._rotated: Integers = np.tile(index, sizes.candidates)
        stops = np.where(index < sizes.lead, sizes.lead, index + 1 if sizes.causal else sizes.rows)
        self._own: Integers = np.stack(np.broadcast_arrays(starts, starts + stops), axis=-1).reshape(-1, 2)

    def of(
        self, begin: Sequence[PrefixSegment], steps: Sequence[StepSegment], device: torch.device | None = None
    ) -> FlowRows:
        """The rows of a pass by itself, on the host by default."""
        integers = torch.from_numpy(self.integers(begin, steps)).to(device or "cpu")
        return self.view(integers, self.counts(begin, steps), (begin, steps))

    def counts(self, begin: Sequence[PrefixSegment], steps: Sequence[StepSegment]) -> RowCounts:
        """The sizes of these rows."""
        ends = [each.rows for each in begin] + [each.prefix + self._sizes.step_rows for each in steps]
        return RowCounts(
            prefixes=tuple(each.length for each in begin),
            tokens=tuple(len(each.ids) + each.padding for each in begin),
            steps=len(steps),
            reach=max(ends),
        )

    def size(self, counts: RowCounts) -> int:
        """The number of integers of a pass."""
        return sum(size + size % 2 for size in self._sections(counts))

    def integers(self, begin: Sequence[PrefixSegment], steps: Sequence[StepSegment]) -> Integers:
        """The integers of a pass in one array, each section at a multiple of 16 bytes."""
        parts = [*self._rows(begin, steps), *self._rotations(begin, steps), *self._seen(begin, steps)]
        parts += [_integers([each.slot for each in begin]), _integers([each.slot for each in steps])]
        parts += [_integers([each.step - 1 for each in steps])]
        parts += [_integers([*each.ids, *[0] * each.padding]) for each in begin]
        starts = _starts([len(part) for part in parts])
        whole = np.zeros(starts[-1], np.int64)
        for start, part in zip(starts, parts, strict=False):
            whole[start : start + len(part)] = part
        return whole

    def view(
        self,
        integers: Tensor,
        counts: RowCounts,
        segments: tuple[Sequence[PrefixSegment], Sequence[StepSegment]] | None,
    ) -> FlowRows:
        """The rows of an array of `size` integers. segments: those of the only pass over it, as in FlowRows."""
        sizes = self._sections(counts)
        starts = _starts(sizes)
        views = [integers[start : start + size] for start, size in zip(starts, sizes, strict=False)]
        slot, position, *views = views
        rotations = [views.pop(0)[None] for _ in range(1 + self._cross)]
        ranges = [views.pop(0).view(len(slot), 2, 2) for _ in range(1 + self._cross)]
        each = self._sizes.rows
        joint = PackedLayout(
            lengths=(*counts.prefixes, *(each,) * (counts.steps * self._sizes.candidates)),
            reach=counts.reach,
            row_slot=slot,
            row_position=position,
            rope_position=rotations[0],
            sampled_rows=slot[:0],
            places=None if segments is None else self._spans(*segments),
            visibility=Visibility(ranges[0]),
        )
        cross = replace(joint, rope_position=rotations[1], visibility=Visibility(ranges[1])) if self._cross else None
        layout = GroupLayout(joint=joint, cross=cross, prefixes=len(counts.prefixes), prefix_rows=sum(counts.prefixes))
        begin, slots, steps, *ids = views
        return FlowRows(layout=layout, begin=begin, slots=slots, steps=steps, ids=tuple(ids), segments=segments)

    def _sections(self, counts: RowCounts) -> list[int]:
        """The sizes of slots, positions, RoPE positions and ranges of rows, then of slots, steps and tokens."""
        rows, begin, kinds = (
            sum(counts.prefixes) + counts.steps * self._sizes.step_rows,
            len(counts.prefixes),
            1 + self._cross,
        )
        return [rows, rows, *[rows] * kinds, *[4 * rows] * kinds, begin, counts.steps, counts.steps, *counts.tokens]

    def _rows(self, begin: Sequence[PrefixSegment], steps: Sequence[StepSegment]) -> tuple[Integers, Integers]:
        """Slot and position of each row."""
        counts = [each.length for each in begin] + [self._sizes.step_rows] * len(steps)
        slots = np.repeat(_integers([*(each.slot for each in begin), *(each.slot for each in steps)]), counts)
        positions = [*map(self._places, begin), *(each.prefix + self._offsets for each in steps)]
        return slots, np.concatenate(positions)

    def _places(self, prefix: PrefixSegment) -> Integers:
        """The positions of a prefix's rows: those that only pad it stand before the closing ones."""
        if not prefix.padding:
            return np.arange(prefix.rows)
        ends = prefix.rows - self._sizes.closing
        beyond = np.minimum(prefix.rows + np.arange(prefix.padding), self._capacity - 1)
        return np.concatenate([np.arange(ends), beyond, np.arange(ends, prefix.rows)])

    def _rotations(self, begin: Sequence[PrefixSegment], steps: Sequence[StepSegment]) -> list[Integers]:
        """RoPE positions in layers of each kind: a candidate's rows follow the prefix, or begin at 0."""
        prefixes = list(map(self._places, begin))
        joint = np.concatenate([*prefixes, *(each.prefix + self._rotated for each in steps)])
        return [joint, np.concatenate([*prefixes, np.tile(self._rotated, len(steps))])] if self._cross else [joint]

    def _seen(self, begin: Sequence[PrefixSegment], steps: Sequence[StepSegment]) -> list[Integers]:
        """The places that rows see in layers of each kind: [rows, 2, 2], flat."""
        rows, closing = self._sizes.step_rows, self._sizes.closing
        first = sum(each.length for each in begin)
        joint = np.zeros((first + rows * len(steps), 2, 2), np.int64)
        at = 0
        for prefix in begin:
            end = at + prefix.length
            joint[at:end, 0, 1] = prefix.rows - closing
            joint[end - closing : end, 0, 1] = prefix.rows
            at = end
        prefixes = np.repeat(_integers([each.prefix for each in steps]), rows)
        joint[first:, 0, 1] = prefixes
        found = [joint.copy()] if self._cross else []
        own = joint[first:].reshape(len(steps), rows, 2, 2)
        own[:, :, 1] = prefixes.reshape(len(steps), rows, 1) + self._own
        whole = own[:, : self._sizes.rows]  # of the first candidate: what lies behind the prefix, one range
        whole[:, :, 0, 1] = whole[:, :, 1, 1]
        whole[:, :, 1] = 0
        joint[first:] = own.reshape(-1, 2, 2)
        return [joint.ravel(), *(each.ravel() for each in found)]

    def _spans(self, begin: Sequence[PrefixSegment], steps: Sequence[StepSegment]) -> tuple[Span, ...]:
        rows = self._sizes.rows
        prefixes = [Span(each.slot, 0, each.length) for each in begin]
        starts = range(0, self._sizes.step_rows, rows)
        return (*prefixes, *(Span(each.slot, each.prefix + start, rows) for each in steps for start in starts))


def _integers(numbers: Sequence[int]) -> Integers:
    return np.array(numbers, np.int64)


def _starts(sizes: Sequence[int]) -> list[int]:
    """Where sections begin, each at a multiple of 16 bytes, and where the last one ends."""
    return list(accumulate((size + size % 2 for size in sizes), initial=0))
