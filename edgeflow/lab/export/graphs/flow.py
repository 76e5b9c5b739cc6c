"""The stages of a flow policy: towers, prefill and a denoising step, from the networks that the engine serves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from edgeflow.artifacts.manifest import KVForm, StageName
from edgeflow.engine.exported.flow import Bucket, BucketMasks
from edgeflow.engine.flow.frames import FlowSizes
from edgeflow.engine.flow.packed import FlowNetwork
from edgeflow.lab.export.graphs.stages import ModelProgram, StageGraph, kv_names, pairs
from edgeflow.lab.export.graphs.static import StaticKV, StaticLayout
from edgeflow.models.grouped import CROSS, GroupedDecoder, GroupLayout
from edgeflow.models.stack_norms import RowTimes

IDS = 8
"""Number of different tokens in example texts; every vocabulary has as many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowExport:
    """A flow policy and the shapes that it is exported for."""

    network: FlowNetwork
    sizes: FlowSizes
    images: int
    """C, the number of images of a frame with all cameras."""
    side: int
    """The side of their images in pixels."""
    state: int
    """S, the size of the state."""
    image_rows: int
    """Rows per image."""
    text: tuple[int, ...]
    """Tokens of each bucket of prompts."""
    batches: tuple[int, ...]
    """Candidates per step, one graph for each number."""


def flow_program(export: FlowExport) -> ModelProgram:
    """Towers and prefill of each bucket, and a step of each batch size over the slots of the largest bucket."""
    buckets = [
        Bucket(images=export.images, image_rows=export.image_rows, text=text, closing=export.sizes.closing)
        for text in sorted(export.text)
    ]
    past, decoder = buckets[-1].rows, export.network.decoder
    stages = _FlowStages(export, past)
    masks = {bucket: BucketMasks(bucket, export.sizes, decoder.kinds, past) for bucket in buckets}
    return ModelProgram(
        stages=(
            *(stages.towers(bucket) for bucket in buckets),
            *(stages.prefill(each) for each in masks.values()),
            *(stages.step(masks[buckets[-1]], batch) for batch in sorted(export.batches)),
        ),
        kv=KVForm(
            layers=len(decoder.heads.kinds),
            kv_heads=decoder.heads.kv_heads,
            head_dim=decoder.heads.head_dim,
            positions=past,
            kinds=decoder.heads.kinds,
        ),
        text=export.text[-1],
        source=export,
    )


class _FlowStages:
    """The stages of a flow policy. past: T, the rows of the prefix."""

    def __init__(self, export: FlowExport, past: int) -> None:
        self._export = export
        self._past = past
        self._network = export.network
        self._decoder: GroupedDecoder = export.network.decoder
        self._capacity = past + export.sizes.rows
        self._times = export.network.time_table(export.sizes.times)  # a constant of every graph of a step
        self._decoder.rotary(self._capacity)  # created here, so that it is a constant of every graph

    def towers(self, bucket: Bucket) -> StageGraph:
        export, network = self._export, self._network

        def run(pixel_values: Tensor, prompt_ids: Tensor, state: Tensor) -> Sequence[Tensor]:
            return [network.embed_prefix([pixel_values], [prompt_ids], state)[0][None]]

        inputs = {
            "pixel_values": torch.zeros(export.images, 3, export.side, export.side),
            "prompt_ids": torch.arange(bucket.text) % IDS,
            "state": torch.zeros(1, export.state),
        }
        return StageGraph(stage=StageName.TOWERS, run=run, inputs=inputs, outputs=("hidden",), rows=bucket.rows)

    def prefill(self, masks: BucketMasks) -> StageGraph:
        decoder, bucket = self._decoder, masks.bucket
        layers = len(decoder.heads.kinds)

        def run(hidden: Tensor, position: Tensor, seen: Tensor) -> Sequence[Tensor]:
            layout, kv = StaticLayout.over(position, seen), StaticKV([None] * layers, self._capacity)
            rows = GroupLayout(joint=layout, cross=layout, prefixes=1, prefix_rows=bucket.rows)
            decoder.forward(hidden[0], hidden[0, :0], rows, kv.slots)
            return [each[None] for layer in kv.layers for each in layer.rows or ()]

        hidden = torch.zeros(1, bucket.rows, self._width)
        inputs = {"hidden": hidden, **masks.prefix(bucket.images, bucket.text)}
        return StageGraph(
            stage=StageName.PREFILL, run=run, inputs=inputs, outputs=kv_names(layers, "_rows"), rows=bucket.rows
        )

    def step(self, masks: BucketMasks, batch: int) -> StageGraph:
        network, decoder, sizes, times = self._network, self._decoder, self._export.sizes, self._times
        crosses, has_state = CROSS in decoder.kinds, sizes.state > 0
        nothing = torch.zeros(0, self._width)

        def run(x: Tensor, times_of: Tensor, *others: Tensor) -> Sequence[Tensor]:
            given = list(others)
            state = given.pop(0) if has_state else x.new_zeros(batch, 0)
            position = given.pop(0)
            crossing = given.pop(0) if crosses else None
            joint = StaticLayout.over(position, given.pop(0))
            cross = None if crossing is None else StaticLayout.over(crossing, given.pop(0))
            hidden, condition = network.embed_step(x, RowTimes(times, times_of), state)
            rows = GroupLayout(joint=joint, cross=cross, prefixes=0, prefix_rows=0)
            kv = StaticKV(list(pairs(given)), self._capacity)
            return [network.velocity(decoder.forward(nothing, hidden, rows, kv.slots, condition))]

        return StageGraph(
            stage=StageName.STEP,
            run=run,
            inputs=self._step_inputs(masks, batch),
            outputs=("velocity",),
            rows=sizes.rows,
            past=self._past,
            batch=batch,
        )

    def _step_inputs(self, masks: BucketMasks, batch: int) -> dict[str, Tensor]:
        sizes, heads, bucket = self._export.sizes, self._decoder.heads, masks.bucket
        inputs = {
            "x": torch.zeros(batch, sizes.horizon, sizes.dims),
            "times": _each(torch.arange(sizes.horizon) % len(self._times), batch),
        }
        if sizes.state:
            inputs["state"] = torch.zeros(batch, sizes.state)
        inputs |= {name: _each(each, batch) for name, each in masks.step(bucket.images, bucket.text).items()}
        shape = batch, self._past, heads.kv_heads, heads.head_dim
        return inputs | {name: torch.zeros(shape) for name in kv_names(len(heads.kinds))}

    @property
    def _width(self) -> int:
        return self._decoder.prefix_width


def _each(values: Tensor, batch: int) -> Tensor:
    return values.expand(batch, *values.shape).clone()
