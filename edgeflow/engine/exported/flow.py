"""Stages of a flow policy as graphs of fixed shapes: one run of towers and prefill for each frame that begins, and one
batched step for the frames that step.

Slots begin as zeros: a masked place counts 0 times its value, so it must be finite. The rows of a bucket are written
whole, and places behind a shorter bucket are cleared. So a frame that is not finite spoils its slot alone, and the next
frame that begins there finds nothing of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from edgeflow.artifacts.manifest import Array, KVForm, kv_arrays, zeros
from edgeflow.artifacts.sessions import BoundGraph, GraphSession
from edgeflow.engine.exported.batches import StepBatch, step_batches
from edgeflow.engine.flow.buckets import Bucket, BucketMasks
from edgeflow.engine.flow.frames import FlowFrame, FlowSizes
from edgeflow.engine.flow.policy import FlowStages, PlacedPass, PrefixInputs, PrefixSegment, StepInputs, StepSegment

CPU = torch.device("cpu")
BOUND = 256
"""Bindings of a graph that are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowGraphs:
    """The loaded graphs. buckets: of prompts, the one of the fewest tokens first; towers, prefills: of each of them;
    steps: by their batch, the smallest first.
    """

    kv: KVForm
    buckets: tuple[Bucket, ...]
    towers: tuple[GraphSession, ...]
    prefills: tuple[GraphSession, ...]
    steps: tuple[GraphSession, ...]

    def bucket_of(self, tokens: int) -> int:
        """The index of the smallest bucket for so many tokens; ValueError where there is none."""
        for index, bucket in enumerate(self.buckets):
            if bucket.text >= tokens:
                return index
        raise ValueError(f"a prompt of {tokens} tokens; the longest bucket has {self.buckets[-1].text}")


@dataclass(frozen=True, slots=True)
class StaticNetwork:
    """engine/flow/policy.StagedNetwork of an artifact: float32 on the host."""

    graphs: FlowGraphs
    device: torch.device = CPU
    dtype: torch.dtype = torch.float32

    def prefix_rows(self, frame: FlowFrame) -> int:
        """Rows of a frame's prefix."""
        bucket = self.graphs.buckets[0]
        return len(frame.pixel_values) * bucket.image_rows + len(frame.prompt_ids) + bucket.closing

    def stages(self, sizes: FlowSizes, slots: int, capacity: int) -> FlowStages:  # noqa: ARG002 - slots are of one size
        """As of StagedNetwork."""
        return StaticStages(self.graphs, sizes, slots)


@dataclass(frozen=True, slots=True)
class _Held:
    """The frame of a slot: its bucket, cameras and tokens."""

    bucket: int
    cameras: int
    tokens: int


class StaticStages:
    """engine/flow/policy.FlowStages of graphs. kv [layers, 2, S, T, KH, D]: graphs read and write it in place. S: at
    least the largest batch.
    """

    launch_ahead = 0

    def __init__(self, graphs: FlowGraphs, sizes: FlowSizes, slots: int) -> None:
        form = graphs.kv
        there = max(slots, graphs.steps[-1].graph.batch)
        self.kv = np.zeros((form.layers, 2, there, form.positions, form.kv_heads, form.head_dim), np.float32)
        self.graphs = graphs
        self._masks = [BucketMasks(each, sizes, form.kinds, form.positions) for each in graphs.buckets]
        self._held: dict[int, _Held] = {}
        self._written = [0] * there  # places of each slot that are not zeros
        self._prefixes = [_Prefix(self, index, masks) for index, masks in enumerate(self._masks)]
        self._steps = {each.graph.batch: _Step(self, each, sizes.steps) for each in graphs.steps}
        self._candidates = sizes.candidates

    @property
    def device(self) -> torch.device:
        return CPU

    @property
    def kv_bytes(self) -> int:
        return self.kv.nbytes

    def rows(self, frame: FlowFrame) -> int:
        """Rows of a frame's prefix."""
        return StaticNetwork(self.graphs).prefix_rows(frame)

    def place(
        self, begin: Sequence[PrefixSegment], steps: Sequence[StepSegment], ids: Sequence[Sequence[int]]
    ) -> PlacedPass:
        """As of FlowStages."""
        for segment, own in zip(begin, ids, strict=True):
            index = self.graphs.bucket_of(len(own))
            bucket = self.graphs.buckets[index]
            cameras = (segment.rows - len(own) - bucket.closing) // bucket.image_rows
            self._held[segment.slot] = _Held(index, cameras, len(own))
        return StaticPass(self, begin, steps, ids)

    def copy_prefix(self, source: int, target: int, rows: int) -> None:  # noqa: ARG002 - the places of a bucket are
        """As of FlowStages; a bucket's places are copied whole."""
        held = self._held[source]
        places = self.graphs.buckets[held.bucket].rows
        self.kv[:, :, target, :places] = self.kv[:, :, source, :places]
        self.clear_behind(target, places)
        self._held[target] = held

    def clear_behind(self, slot: int, places: int) -> None:
        """Note that the first places of a slot are written; what was written behind them becomes zeros."""
        if self._written[slot] > places:
            self.kv[:, :, slot, places : self._written[slot]] = 0.0
        self._written[slot] = places

    def begin(self, slot: int, pixels: Tensor, ids: Sequence[int], state: Tensor) -> None:
        """Run towers and prefill of the frame that was placed in a slot."""
        held = self._held[slot]
        self._prefixes[held.bucket].run(slot, held, pixels, ids, state)

    def step(self, segments: Sequence[StepSegment], inputs: StepInputs) -> Tensor:
        """Velocities [n M, H, A] of frames in their slots."""
        frames = [each for each in segments for _ in range(self._candidates)]
        velocity = torch.empty_like(inputs.x)
        for batch in step_batches([each.slot for each in frames], list(self._steps), self.kv.shape[2]):
            self._steps[batch.size].run(batch, frames, inputs, velocity)
        return velocity

    def mask_of(self, slot: int) -> Mapping[str, Array]:
        """The inputs of a step that follow from the frame of a slot."""
        held = self._held[slot]
        mask = self._masks[held.bucket].step(held.cameras, held.tokens)
        named = {"position": mask.position, "seen": mask.seen, "crossing": mask.crossing, "crossed": mask.crossed}
        return {name: each.numpy() for name, each in named.items() if each is not None}


class StaticPass:
    """engine/flow/policy.PlacedPass of graphs."""

    def __init__(
        self,
        stages: StaticStages,
        begin: Sequence[PrefixSegment],
        steps: Sequence[StepSegment],
        ids: Sequence[Sequence[int]],
    ) -> None:
        self.begin = torch.tensor([each.slot for each in begin], dtype=torch.long)
        self.slots = torch.tensor([each.slot for each in steps], dtype=torch.long)
        self.steps = torch.tensor([each.step - 1 for each in steps], dtype=torch.long)
        self._stages = stages
        self._begin, self._steps, self._ids = begin, steps, ids

    def run(self, prefixes: PrefixInputs | None, steps: StepInputs | None) -> Tensor | None:
        """As of PlacedPass."""
        if prefixes is not None:
            for segment, ids, pixels, state in zip(
                self._begin, self._ids, prefixes.pixels, prefixes.state, strict=True
            ):
                self._stages.begin(segment.slot, pixels, ids, state)
        return None if steps is None else self._stages.step(self._steps, steps)


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

    def run(self, slot: int, held: _Held, pixels: Tensor, ids: Sequence[int], state: Tensor) -> None:
        """The keys and values of a frame enter its slot."""
        given, mask = self._given, self._masks.prefix(held.cameras, held.tokens)
        given["pixel_values"][: held.cameras] = pixels.numpy()
        given["pixel_values"][held.cameras :] = 0.0
        given["prompt_ids"][: held.tokens] = ids
        given["prompt_ids"][held.tokens :] = 0
        if "state" in given:
            given["state"][0] = state.numpy()
        self._towers.run()
        self._inputs["position"][:] = mask.position.numpy()
        self._inputs["seen"][:] = mask.seen.numpy()
        self._into(slot).run()
        self._stages.clear_behind(slot, self._masks.bucket.rows)

    def _bound(self, slot: int) -> BoundGraph:
        places = self._masks.bucket.rows
        kv = self._stages.kv[:, :, slot : slot + 1, :places]
        return self._prefill.bind(self._inputs, kv_arrays(kv, "_rows"))


class _Step:
    """A step of one batch. steps: N, the index of flow time 0."""

    def __init__(self, stages: StaticStages, session: GraphSession, steps: int) -> None:
        self._stages = stages
        self._session = session
        self._clean = steps
        own = [each for each in session.graph.inputs if not each.name.startswith(("key.", "value."))]
        self._inputs = {each.name: zeros(each) for each in own}
        for name in ("seen", "crossed"):
            if name in self._inputs:
                self._inputs[name][:] = True  # lines that are ignored see something
        self._velocity = zeros(session.graph.outputs[0])
        self._copied: Array | None = None
        self._over = lru_cache(BOUND)(self._bound)

    def run(self, batch: StepBatch, frames: Sequence[StepSegment], inputs: StepInputs, velocity: Tensor) -> None:
        """Velocities of the batch's rows."""
        rows, lines, given = list(batch.rows), list(batch.lines), self._inputs
        steps = torch.tensor([frames[row].step - 1 for row in rows])[:, None]
        given["x"][lines] = inputs.x[rows].numpy()
        given["times"][lines] = torch.where(inputs.clean[rows], self._clean, steps).numpy()
        if "state" in given:
            given["state"][lines] = inputs.state[rows].numpy()
        for row, line in zip(rows, lines, strict=True):
            for name, mask in self._stages.mask_of(frames[row].slot).items():
                given[name][line] = mask
        if batch.first is None:
            self._copy([frames[row].slot for row in rows])
        self._over(batch.first).run()
        velocity[rows] = torch.from_numpy(self._velocity[lines])

    def _copy(self, slots: Sequence[int]) -> None:
        """The keys and values of slots enter the batch's own memory."""
        kv = self._stages.kv
        if self._copied is None:
            shape = (*kv.shape[:2], self._session.graph.batch, *kv.shape[3:])
            self._copied = np.zeros(shape, np.float32)
        for line, slot in enumerate(slots):
            self._copied[:, :, line] = kv[:, :, slot]

    def _bound(self, first: int | None) -> BoundGraph:
        """Over slots from the first one on, or over copies."""
        kv, size = self._stages.kv, self._session.graph.batch
        if first is None:
            if self._copied is None:
                raise RuntimeError("nothing was copied")
            kv, first = self._copied, 0
        past = kv_arrays(kv[:, :, first : first + size])
        return self._session.bind(self._inputs | past, {"velocity": self._velocity})
