"""Flow-matching policies that were exported as static graphs (docs/npu.md): form of the graphs, and loading them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from edgeflow.artifacts.files import AGAIN, check_contents, expect_tensors, loaded_bytes, open_artifact
from edgeflow.artifacts.manifest import (
    BOOL,
    INT,
    MANIFEST,
    Graph,
    KVForm,
    Manifest,
    StageName,
    TensorSpec,
    is_artifact,
    kv_specs,
    spec,
)
from edgeflow.artifacts.sessions import GraphSession, Runtime, check_providers
from edgeflow.engine.exported.flow import FlowGraphs, StaticNetwork
from edgeflow.engine.exported.placement import check_placement
from edgeflow.engine.flow.buckets import Bucket
from edgeflow.engine.flow.frames import FlowSizes
from edgeflow.engine.policy import INSTRUCTION, Footprint, Placement, Published
from edgeflow.models.grouped import CROSS, JOINT
from edgeflow.policies.flow.config import FlowCheckpoint
from edgeflow.policies.flow.policy import UNNORM_KEYS, DenoisingPolicy, Texts, TokenizedTexts
from edgeflow.policies.flow.published import FlowArchitecture, PublishedFlow, WeightNumbers, footprint, policy_of
from edgeflow.text.checkpoint_json import Fields
from edgeflow_client.errors import CheckpointError, ConfigError, InvalidArgument
from edgeflow_client.reasons import Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowForm:
    """The sizes of a checkpoint's graphs. cameras: C; side: of their images; state: S; image_rows: of each camera."""

    sizes: FlowSizes
    cameras: int
    side: int
    state: int
    image_rows: int
    layers: int
    kv_heads: int
    head_dim: int

    def buckets(self, manifest: Manifest) -> tuple[Bucket, ...]:
        """The buckets of a manifest; CheckpointError for graphs of other shapes than these sizes give."""
        self._check_kv(manifest)
        fixed = self.cameras * self.image_rows + self.sizes.closing
        towers, prefills = manifest.of(StageName.TOWERS), manifest.of(StageName.PREFILL)
        rows = [graph.rows for graph in towers]
        if rows != [graph.rows for graph in prefills] or len(set(rows)) < len(rows) or rows[0] <= fixed:
            raise CheckpointError(
                f"{MANIFEST} has towers of {rows} rows and prefills of {[graph.rows for graph in prefills]}; expected "
                f"both in the same sizes, above {fixed}: {AGAIN}"
            )
        if manifest.kv.positions != rows[-1] or manifest.text != rows[-1] - fixed:
            raise CheckpointError(
                f"{MANIFEST} has {manifest.kv.positions} positions and texts of {manifest.text} tokens; its prefills "
                f"have {rows[-1]} rows: {AGAIN}"
            )
        for tower, prefill in zip(towers, prefills, strict=True):
            self._check_prefix(tower, prefill, manifest.kv)
        for step in manifest.of(StageName.STEP):
            expect_tensors(step, list(self._step_inputs(step.batch, manifest.kv)), [self._velocity(step.batch)])
        return tuple(
            Bucket(cameras=self.cameras, image_rows=self.image_rows, text=each - fixed, closing=self.sizes.closing)
            for each in rows
        )

    def _check_kv(self, manifest: Manifest) -> None:
        kv = manifest.kv
        found, wanted = (kv.layers, kv.kv_heads, kv.head_dim), (self.layers, self.kv_heads, self.head_dim)
        if found != wanted:
            raise CheckpointError(
                f"{MANIFEST}.kv has layers, KV heads and head width {list(found)}, and config.json {list(wanted)}: "
                f"{AGAIN}"
            )
        if len(kv.kinds) != kv.layers or not set(kv.kinds) <= {JOINT, CROSS}:
            raise CheckpointError(f"{MANIFEST}.kv.kinds: expected {JOINT} or {CROSS} for each of {kv.layers} layers")

    def _check_prefix(self, tower: Graph, prefill: Graph, kv: KVForm) -> None:
        rows = tower.rows
        given = {each.name: each for each in tower.inputs}
        text = rows - self.cameras * self.image_rows - self.sizes.closing
        width = next((each.shape[-1] for each in tower.outputs if each.shape), 0)
        hidden = spec("hidden", 1, rows, width)
        inputs = [
            spec("pixel_values", self.cameras, 3, self.side, self.side),
            spec("prompt_ids", text, dtype=INT),
            *([spec("state", 1, self.state)] if "state" in given else []),
        ]
        expect_tensors(tower, inputs, [hidden])
        places = [spec("position", 1, rows, dtype=INT), spec("seen", 1, rows, rows, dtype=BOOL)]
        expect_tensors(prefill, [hidden, *places], list(kv_specs(kv, 1, rows, "_rows")))

    def _step_inputs(self, batch: int, kv: KVForm) -> Iterator[TensorSpec]:
        sizes, past = self.sizes, kv.positions
        yield self._velocity(batch, "x")
        yield spec("times", batch, sizes.horizon, dtype=INT)
        if sizes.state:
            yield spec("state", batch, sizes.state)
        yield spec("position", batch, sizes.rows, dtype=INT)
        yield spec("seen", batch, sizes.rows, past + sizes.rows, dtype=BOOL)
        if CROSS in kv.kinds:
            yield spec("crossing", batch, sizes.rows, dtype=INT)
            yield spec("crossed", batch, sizes.rows, past, dtype=BOOL)
        yield from kv_specs(kv, batch, past)

    def _velocity(self, batch: int, name: str = "velocity") -> TensorSpec:
        return spec(name, batch, self.sizes.horizon, self.sizes.dims)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedFlow:
    """An artifact whose manifest fits its checkpoint. sizes: of answers with the exported number of steps. vocabulary:
    tokens that its towers embed.
    """

    manifest: Manifest
    sizes: FlowSizes
    buckets: tuple[Bucket, ...]
    vocabulary: int

    @property
    def steps(self) -> int:
        """N"""
        return self.sizes.steps


def open_flow(folder: Path, architecture: FlowArchitecture[Any]) -> OpenedFlow:
    """Read and check the manifest; CheckpointError for one that is damaged, or of another checkpoint's sizes."""
    manifest = open_artifact(folder)
    if manifest.family != architecture.family:
        raise CheckpointError(
            f"{MANIFEST}.family is {manifest.family}, and config.json is of {architecture.family}: copy it again"
        )
    described = Fields(f"{MANIFEST}.preprocessing", manifest.preprocessing)
    steps = described.object("denoising").size("steps")
    sizes = replace(architecture.sizes, steps=steps, candidates=1)
    flow, stacks = architecture.flow, architecture.stacks
    form = FlowForm(
        sizes=sizes,
        cameras=len(flow.cameras),
        side=flow.side,
        state=flow.state_dims,
        image_rows=architecture.vision.rows,
        layers=stacks.layers,
        kv_heads=stacks.kv_heads,
        head_dim=stacks.head_dim,
    )
    buckets = form.buckets(manifest)
    return OpenedFlow(manifest=manifest, sizes=sizes, buckets=buckets, vocabulary=described.count("vocabulary"))


def load_graphs(folder: Path, opened: OpenedFlow, runtime: Runtime) -> FlowGraphs:
    """Compare the files with the manifest and load the graphs."""
    manifest = opened.manifest
    check_providers(runtime.providers)
    check_contents(folder, manifest)
    sessions = {stage: tuple(GraphSession(folder, each, runtime) for each in manifest.of(stage)) for stage in StageName}
    return FlowGraphs(
        kv=manifest.kv,
        buckets=opened.buckets,
        towers=sessions[StageName.TOWERS],
        prefills=sessions[StageName.PREFILL],
        steps=sessions[StageName.STEP],
    )


class StaticFlow:
    """The folder of an artifact (engine/policy.Published). CheckpointError for one that is damaged, or of another
    checkpoint's sizes; ConfigError for settings that it was not exported for.
    """

    def __init__(self, directory: Path, checkpoint: FlowCheckpoint[Any], architecture: FlowArchitecture[Any]) -> None:
        self._directory = directory
        self._checkpoint = checkpoint
        self._architecture = architecture
        self._opened = opened = open_flow(directory, architecture)
        settings = checkpoint.settings
        if settings.steps not in (None, opened.steps):
            raise ConfigError(
                f"policy.steps: {settings.steps}; this artifact was exported for {opened.steps}: remove it, or export "
                "the model again"
            )
        self._sizes = replace(opened.sizes, candidates=settings.candidates)

    @property
    def unnorm_keys(self) -> tuple[str, ...]:
        return UNNORM_KEYS

    def footprint(self, dtype: torch.dtype) -> Footprint:
        """Memory of graphs and weights, and of sessions, whose slots are as long as the longest bucket."""
        architecture = self._architecture
        stored = loaded_bytes(self._directory, self._opened.manifest)
        weights = WeightNumbers(decoder=0, floats=0, others=-(-stored // dtype.itemsize))
        found = footprint(
            weights, architecture.stacks, architecture.vision, architecture.flow, self._sizes, dtype=dtype
        )
        return replace(found, capacity=self._opened.manifest.kv.positions)

    def load(self, placement: Placement) -> DenoisingPolicy:
        """Load graphs and tokenizer; CheckpointError says what is wrong with them."""
        check_placement(placement)
        processors = self._checkpoint.processors
        graphs = load_graphs(self._directory, self._opened, placement.runtime)
        tokenized = TokenizedTexts(processors.tokenizer, processors.tokens, self._opened.vocabulary)
        texts = BucketTexts(self._architecture.texts(tokenized), self._opened.manifest.text)
        policy = policy_of(
            self._checkpoint,
            self._architecture,
            sizes=self._sizes,
            network=StaticNetwork(graphs),
            texts=texts,
            placement=placement,
        )
        try:
            policy.text_rows(INSTRUCTION)
        except InvalidArgument as error:
            raise CheckpointError(f"model: {INSTRUCTION!r} {error.text}: export it with more tokens of text") from None
        return policy


class BucketTexts:
    """Prompts of at most so many tokens, those of the longest bucket (policies/flow/policy.Texts)."""

    def __init__(self, texts: Texts, most: int) -> None:
        self._texts = texts
        self._most = most

    def ids(self, task: str, state: NDArray[np.float32]) -> tuple[int, ...]:
        """The prompt of a frame; InvalidArgument for one that no bucket holds."""
        ids = self._texts.ids(task, state)
        self._check(len(ids))
        return ids

    def most_rows(self, task: str) -> int:
        """The most tokens of a task's prompt with any state."""
        rows = self._texts.most_rows(task)
        self._check(rows)
        return rows

    def _check(self, tokens: int) -> None:
        if tokens > self._most:
            raise InvalidArgument(
                f"has {tokens} prompt tokens; the model was exported for {self._most}",
                field="instruction",
                reason=Reason.INSTRUCTION_TOO_LONG,
            )


def published_flow(directory: Path, checkpoint: FlowCheckpoint[Any], architecture: FlowArchitecture[Any]) -> Published:
    """The checkpoint or the artifact of a folder."""
    kind = StaticFlow if is_artifact(directory) else PublishedFlow
    return kind(directory, checkpoint, architecture)
