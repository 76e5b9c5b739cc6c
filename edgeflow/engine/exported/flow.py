"""Stages of a flow policy as graphs of fixed shapes: one run of towers and prefill for each frame that begins, and one
batched step for the frames that step.

A bucket has places for the images of all cameras and for a number of tokens. A frame may have fewer: nothing sees the
unused places. Positions and masks are those of packed rows (flow/rows.py), spread over the bucket's places.

Slots begin as zeros: a masked place counts 0 times its value, so it must be finite. The rows of a bucket are written
whole, and places after a shorter bucket are cleared. So a frame that is not finite spoils only its slot, and the next
frame that begins there finds nothing of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from edgeflow.artifacts.manifest import kv_arrays, zeros
from edgeflow.artifacts.sessions import BoundGraph, GraphSession
from edgeflow.engine.exported.tokens import BOUND, CPU, ExportedGraphs, SlotGraph, StepBatch, step_batches
from edgeflow.engine.flow.frames import FlowSizes
from edgeflow.engine.flow.policy import FlowStages, PrefixInputs, StepInputs
from edgeflow.engine.flow.rows import FlowLayouts, FlowRows, PrefixSegment, StepSegment
from edgeflow.kernels.kv.layout import PackedLayout
from edgeflow.models.grouped import CROSS

KEPT = 64  # kinds of frames whose masks are kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """The prefix of static graphs: rows of images, text, and closing rows, in this order."""

    images: int
    """C, images that there are places for: of every camera, at each moment of a history."""
    image_rows: int
    """Rows of each image."""
    text: int
    """Tokens that there are places for."""
    closing: int
    """Closing rows, as in FlowSizes."""

    @property
    def rows(self) -> int:
        """P"""
        return self.images * self.image_rows + self.text + self.closing

    def used(self, images: int, tokens: int) -> Tensor:
        """The places of a frame's rows, in their order [L_P] int64; ValueError for a frame that does not fit."""
        if not 0 < images <= self.images or not 0 <= tokens <= self.text:
            raise ValueError(
                f"{images} images and {tokens} tokens in a bucket of {self.images} images and {self.text} tokens"
            )
        first, closing = self.images * self.image_rows, self.rows - self.closing
        return torch.cat(
            [
                torch.arange(images * self.image_rows),
                torch.arange(first, first + tokens),
                torch.arange(closing, self.rows),
            ]
        )


class BucketMasks:
    """Positions and masks of one bucket, by the names of a graph's inputs. kinds: of the layers. past: T, places of a
    slot.

    prefix: position [1, P] int64; seen [1, P, P] bool. step: of one candidate over T places of a slot, position [R]
    int64; seen [R, T + R] bool; crossing [R], crossed [R, T]: the same in layers that only read the prefix, where
    there are any.
    """

    def __init__(self, bucket: Bucket, sizes: FlowSizes, kinds: tuple[str, ...], past: int) -> None:
        self.bucket = bucket
        self._past = past
        self._cross = CROSS in kinds
        self._layouts = FlowLayouts(replace(sizes, candidates=1), kinds)
        self.prefix = lru_cache(KEPT)(self._prefix)
        self.step = lru_cache(KEPT)(self._step)

    def _prefix(self, images: int, tokens: int) -> dict[str, Tensor]:
        used, rows = self.bucket.used(images, tokens), self.bucket.rows
        joint = self._layouts.of([PrefixSegment(slot=0, rows=len(used))], []).layout.joint
        position, seen = torch.zeros(rows, dtype=torch.long), torch.eye(rows, dtype=torch.bool)
        position[used] = joint.rope_position[0]
        seen[used[:, None], used] = joint.seen()
        return {"position": position[None], "seen": seen[None]}

    def _step(self, images: int, tokens: int) -> dict[str, Tensor]:
        used = self.bucket.used(images, tokens)
        layout = self._layouts.of([], [StepSegment(slot=0, prefix=len(used), step=1)]).layout
        joint, cross = self._spread(layout.joint, used), layout.cross
        if cross is None:
            return {"position": layout.joint.rope_position[0], "seen": joint}
        return {
            "position": layout.joint.rope_position[0],
            "crossing": cross.rope_position[0],
            "seen": joint,
            "crossed": self._spread(cross, used)[:, : self._past],
        }

    def _spread(self, layout: PackedLayout, used: Tensor) -> Tensor:
        """[R, T + R] of what rows see in a slot that holds a frame's rows without gaps, and themselves."""
        seen, prefix = layout.seen(), len(used)
        spread = torch.zeros(len(seen), self._past + len(seen), dtype=torch.bool)
        spread[:, used] = seen[:, :prefix]
        spread[:, self._past :] = seen[:, prefix : prefix + len(seen)]
        return spread


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowGraphs(ExportedGraphs):
    """The loaded graphs, in float32 on the host, and the buckets of prompts, the one of the fewest tokens first."""

    device = CPU
    dtype = torch.float32

    buckets: tuple[Bucket, ...]

    def bucket_of(self, tokens: int) -> int:
        """The index of the smallest bucket for so many tokens; ValueError where there is none."""
        for index, bucket in enumerate(self.buckets):
            if bucket.text >= tokens:
                return index
        raise ValueError(f"a prompt of {tokens} tokens; the longest bucket has {self.buckets[-1].text}")

    def prefix_rows(self, cameras: int, tokens: int) -> int:
        """Rows of a prefix."""
        bucket = self.buckets[0]
        return cameras * bucket.image_rows + tokens + bucket.closing

    def stages(self, sizes: FlowSizes, slots: int, capacity: int) -> FlowStages:  # noqa: ARG002 - slots are of one size
        """As in FlowNetwork."""
        return StaticStages(self, sizes, slots)


class StaticStages:
    """engine/flow/policy.FlowStages of graphs. kv [layers, 2, S, T, KH, D]: graphs read and write it in place. S: at
    least the largest batch.
    """

    reads_places = True
    device = CPU

    def __init__(self, graphs: FlowGraphs, sizes: FlowSizes, slots: int) -> None:
        form, self.prefix_rows = graphs.kv, graphs.prefix_rows
        there = max(slots, graphs.steps[-1].graph.batch)
        self.kv = np.zeros((form.layers, 2, there, form.positions, form.kv_heads, form.head_dim), np.float32)
        self.kv_bytes, self.capacity, self.kinds = self.kv.nbytes, form.positions, form.kinds
        self.graphs = graphs
        self._masks = [BucketMasks(each, sizes, form.kinds, form.positions) for each in graphs.buckets]
        self._held: dict[int, tuple[int, Mapping[str, Tensor]]] = {}  # bucket and step of the frame of a slot
        self._written = [0] * there  # places of each slot that are not zeros
        self._prefixes = [_Prefix(self, index, masks) for index, masks in enumerate(self._masks)]
        self._steps = {each.graph.batch: _FlowStep(self, each) for each in graphs.steps}
        self._candidates = sizes.candidates

    def velocity(self, rows: FlowRows, prefixes: PrefixInputs | None, steps: StepInputs | None) -> Tensor | None:
        if rows.segments is None:
            raise ValueError("exported graphs run on the host, which must know the rows of a pass")
        begin, stepping = rows.segments
        if prefixes is not None:
            for each, pixels, state in zip(begin, prefixes.pixels, prefixes.state, strict=True):
                bucket = self.graphs.bucket_of(len(each.ids))
                self._held[each.slot] = bucket, self._masks[bucket].step(len(pixels), len(each.ids))
                self._prefixes[bucket].run(each.slot, pixels, each.ids, state)
        return None if steps is None else self._step(stepping, steps)

    def copy_prefix(self, source: int, target: int, rows: int) -> None:  # noqa: ARG002 - the places of a bucket are
        """As in FlowStages; a bucket's places are copied whole."""
        self._held[target] = self._held[source]
        places = self.graphs.buckets[self._held[source][0]].rows
        self.kv[:, :, target, :places] = self.kv[:, :, source, :places]
        self.clear_after(target, places)

    def clear_after(self, slot: int, places: int) -> None:
        """Note that the first places of a slot are written, and clear what was written after them."""
        if self._written[slot] > places:
            self.kv[:, :, slot, places : self._written[slot]] = 0.0
        self._written[slot] = places

    def _step(self, segments: Sequence[StepSegment], inputs: StepInputs) -> Tensor:
        """Velocities [n M, H, A] of frames in their slots."""
        frames = [each for each in segments for _ in range(self._candidates)]
        velocity = torch.empty_like(inputs.x)
        for batch in step_batches([each.slot for each in frames], list(self._steps), self.kv.shape[2]):
            self._steps[batch.size].run(batch, frames, inputs, velocity)
        return velocity

    def mask_of(self, slot: int) -> Mapping[str, Tensor]:
        """The inputs of a step that follow from the frame of a slot."""
        return self._held[slot][1]


class _Prefix:
    """Towers and prefill of one bucket."""

    def __init__(self, stages: StaticStages, index: int, masks: BucketMasks) -> None:
        graphs = stages.graphs
        towers, self._prefill = graphs.towers[index], graphs.prefills[index]
        self._stages = stages
        self._masks = masks
        self._given = {each.name: zeros(each) for each in towers.graph.inputs}
        self._inputs = {each.name: zeros(each) for each in self._prefill.graph.inputs}
        self._towers = towers.bind(self._given, {"hidden": self._inputs["hidden"]})
        self._into = lru_cache(BOUND)(self._bound)

    def run(self, slot: int, pixels: Tensor, ids: Sequence[int], state: Tensor) -> None:
        """The keys and values of a frame enter its slot."""
        given, cameras, tokens = self._given, len(pixels), len(ids)
        mask = self._masks.prefix(cameras, tokens)
        given["pixel_values"][:cameras] = pixels.numpy()
        given["pixel_values"][cameras:] = 0.0
        given["prompt_ids"][:tokens] = ids
        given["prompt_ids"][tokens:] = 0
        if "state" in given:
            given["state"][0] = state.numpy()
        self._towers.run()
        for name, each in mask.items():
            self._inputs[name][:] = each.numpy()
        self._into(slot).run()
        self._stages.clear_after(slot, self._masks.bucket.rows)

    def _bound(self, slot: int) -> BoundGraph:
        places = self._masks.bucket.rows
        kv = self._stages.kv[:, :, slot : slot + 1, :places]
        return self._prefill.bind(self._inputs, kv_arrays(kv, "_rows"))


class _FlowStep(SlotGraph):
    """A step of one batch."""

    def __init__(self, stages: StaticStages, session: GraphSession) -> None:
        super().__init__(session, stages.kv)
        self._stages = stages
        for name in ("seen", "crossed"):
            if name in self._inputs:
                self._inputs[name][:] = True  # lines that are ignored see something
        self._velocity = zeros(session.graph.outputs[0])
        self._outputs = {"velocity": self._velocity}

    def run(self, batch: StepBatch, frames: Sequence[StepSegment], inputs: StepInputs, velocity: Tensor) -> None:
        """Velocities of the batch's rows."""
        rows, lines, given = list(batch.rows), list(batch.lines), self._inputs
        given["x"][lines] = inputs.x[rows].numpy()
        given["times"][lines] = inputs.times[rows].numpy()
        if "state" in given:
            given["state"][lines] = inputs.state[rows].numpy()
        for row, line in zip(rows, lines, strict=True):
            for name, mask in self._stages.mask_of(frames[row].slot).items():
                given[name][line] = mask.numpy()
        self._run(batch, [frames[row].slot for row in rows])
        velocity[rows] = torch.from_numpy(self._velocity[lines])
