"""Stages of a flow policy as one packed pass: prefix rows and step rows of any frames share each product.

Where rows lie and what they see is built on the host, with one upload.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgeflow.engine.flow.frames import FlowFrame, FlowSizes, RowTimes
from edgeflow.engine.flow.policy import (
    FlowNetwork,
    FlowStages,
    PlacedPass,
    PrefixInputs,
    PrefixSegment,
    StepInputs,
    StepSegment,
)
from edgeflow.kernels.kv.layout import PackedLayout, Span, uploaded
from edgeflow.kernels.kv.slots import rounded_capacity
from edgeflow.kernels.kv.visibility import Visibility
from edgeflow.models.grouped import CROSS, GroupedDecoder, GroupLayout

Whole = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowPlaces:
    """The placement of a pass on the device, all int64."""

    rows: GroupLayout
    """The layout of the rows."""
    begin: Tensor
    """[B]: slots of the frames that begin."""
    slots: Tensor
    """[n]: slots of the frames that step."""
    steps: Tensor
    """[n]: the step of each of these frames, from 0."""
    ids: tuple[Tensor, ...]
    """The text tokens of each prefix."""


class FlowLayouts:
    """Makes the layouts of passes of one model. cross: it has layers that only read the prefix."""

    def __init__(self, sizes: FlowSizes, kinds: Sequence[str], device: torch.device) -> None:
        self._sizes = sizes
        self._cross = CROSS in kinds
        self._device = device
        index = np.arange(sizes.rows)
        starts = np.arange(sizes.candidates)[:, None] * sizes.rows
        self._offsets: Whole = np.arange(sizes.step_rows)
        self._turned: Whole = np.tile(index, sizes.candidates)
        stops = np.where(index < sizes.lead, sizes.lead, index + 1 if sizes.causal else sizes.rows)
        self._own: Whole = np.stack(np.broadcast_arrays(starts, starts + stops), axis=-1).reshape(-1, 2)

    def of(
        self, begin: Sequence[PrefixSegment], steps: Sequence[StepSegment], ids: Sequence[Sequence[int]]
    ) -> FlowPlaces:
        """The placement of a pass. ids: text of each frame that begins."""
        rows = sum(each.rows for each in begin) + len(steps) * self._sizes.step_rows
        numbers = [*self._rows(begin, steps), *self._turning(begin, steps), *self._seen(begin, steps)]
        numbers += [_whole([each.slot for each in begin]), _whole([each.slot for each in steps])]
        numbers += [_whole([each.step - 1 for each in steps]), *map(_whole, ids)]
        slot, position, *views = _upload(numbers, self._device)
        turning = [views.pop(0)[None] for _ in range(1 + self._cross)]
        ranges = [views.pop(0).view(rows, 2, 2) for _ in range(1 + self._cross)]
        spans = self._spans(begin, steps)
        joint = PackedLayout(
            lengths=tuple(span.length for span in spans),
            reach=max(span.start + span.length for span in spans),
            row_slot=slot,
            row_position=position,
            rope_position=turning[0],
            sampled_rows=slot[:0],
            places=spans,
            visibility=Visibility(ranges[0]),
        )
        cross = replace(joint, rope_position=turning[1], visibility=Visibility(ranges[1])) if self._cross else None
        layout = GroupLayout(
            joint=joint, cross=cross, prefixes=len(begin), prefix_rows=sum(each.rows for each in begin)
        )
        return FlowPlaces(rows=layout, begin=views[0], slots=views[1], steps=views[2], ids=tuple(views[3:]))

    def _rows(self, begin: Sequence[PrefixSegment], steps: Sequence[StepSegment]) -> tuple[Whole, Whole]:
        """Slot and position of each row."""
        counts = [each.rows for each in begin] + [self._sizes.step_rows] * len(steps)
        slots = np.repeat(_whole([*(each.slot for each in begin), *(each.slot for each in steps)]), counts)
        positions = [np.arange(each.rows) for each in begin]
        return slots, np.concatenate([*positions, *(each.prefix + self._offsets for each in steps)])

    def _turning(self, begin: Sequence[PrefixSegment], steps: Sequence[StepSegment]) -> list[Whole]:
        """RoPE positions in layers of each kind: a candidate's rows follow the prefix, or begin at 0."""
        prefixes = [np.arange(each.rows) for each in begin]
        joint = np.concatenate([*prefixes, *(each.prefix + self._turned for each in steps)])
        return [joint, np.concatenate([*prefixes, np.tile(self._turned, len(steps))])] if self._cross else [joint]

    def _seen(self, begin: Sequence[PrefixSegment], steps: Sequence[StepSegment]) -> list[Whole]:
        """The places that rows see in layers of each kind: [rows, 2, 2], flat."""
        rows, closing = self._sizes.step_rows, self._sizes.closing
        first = sum(each.rows for each in begin)
        joint = np.zeros((first + rows * len(steps), 2, 2), np.int64)
        at = 0
        for prefix in begin:
            joint[at : at + prefix.rows, 0, 1] = prefix.rows - closing
            joint[at + prefix.rows - closing : at + prefix.rows, 0, 1] = prefix.rows
            at += prefix.rows
        prefixes = np.repeat(_whole([each.prefix for each in steps]), rows)
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
        prefixes = [Span(each.slot, 0, each.rows) for each in begin]
        starts = range(0, self._sizes.step_rows, rows)
        return (*prefixes, *(Span(each.slot, each.prefix + start, rows) for each in steps for start in starts))


def _whole(numbers: Sequence[int]) -> Whole:
    return np.array(numbers, np.int64)


def _upload(parts: Sequence[Whole], device: torch.device) -> list[Tensor]:
    """Arrays as tensors in one upload, each at a multiple of 16 bytes."""
    sizes = [len(part) for part in parts]
    starts = list(accumulate((size + size % 2 for size in sizes), initial=0))
    whole = np.zeros(starts[-1], np.int64)
    for start, size, part in zip(starts, sizes, parts, strict=False):
        whole[start : start + size] = part
    there = uploaded(torch.from_numpy(whole), device)
    return [there[start : start + size] for start, size in zip(starts, sizes, strict=False)]


class PackedStages:
    """engine/flow/policy.FlowStages of networks in torch, over a KV store.

    launch_ahead: 1 on CUDA, unless attention reads places on the host.
    """

    def __init__(self, network: FlowNetwork, sizes: FlowSizes, slots: int, capacity: int) -> None:
        decoder = network.decoder
        self.kv = decoder.kv_slots(slots, rounded_capacity(capacity))
        self.device, self.kv_bytes = self.kv.data.device, self.kv.nbytes
        self.launch_ahead = int(self.device.type == "cuda" and not decoder.reads_places)
        self.layouts = FlowLayouts(sizes, decoder.kinds, self.device)
        self._network = network
        self._times = network.time_table(sizes.times.to(self.device))
        self._nothing = torch.empty(0, 1, device=self.device)  # stands for rows that a pass does not have

    def rows(self, frame: FlowFrame) -> int:
        return self._network.prefix_rows(frame)

    def place(
        self, begin: Sequence[PrefixSegment], steps: Sequence[StepSegment], ids: Sequence[Sequence[int]]
    ) -> PlacedPass:
        places = self.layouts.of(begin, steps, ids)
        run = partial(self._run, places)
        return PlacedPass(begin=places.begin, slots=places.slots, steps=places.steps, run=run)

    def copy_prefix(self, source: int, target: int, rows: int) -> None:
        self.kv.copy_rows(source, target, rows)

    def _run(self, places: FlowPlaces, prefixes: PrefixInputs | None, steps: StepInputs | None) -> Tensor | None:
        network, rows = self._network, self._nothing
        if prefixes is not None:
            rows = torch.cat(network.embed_prefix(prefixes.pixels, places.ids, prefixes.state))
        if steps is None:
            network.decoder.forward(rows, self._nothing, places.rows, self.kv)
            return None
        hidden, condition = network.embed_step(steps.x, RowTimes(self._times, steps.times), steps.state)
        return network.velocity(network.decoder.forward(rows, hidden, places.rows, self.kv, condition))


class PackedNetwork:
    """The base of networks in torch (engine/flow/policy.FlowNetwork), which run packed."""

    decoder: GroupedDecoder

    @property
    def device(self) -> torch.device:
        return self.decoder.device

    @property
    def dtype(self) -> torch.dtype:
        return self.decoder.dtype

    def stages(self: FlowNetwork, sizes: FlowSizes, slots: int, capacity: int) -> FlowStages:
        return PackedStages(self, sizes, slots, capacity)
