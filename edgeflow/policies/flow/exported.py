"""Flow-matching policies as static graphs (docs/develop/static-graphs.md): form of the graphs, and loading them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from edgeflow.artifacts.files import AGAIN, expect_kv, expect_tensors, loaded_bytes, open_artifact, place_specs
from edgeflow.artifacts.manifest import BOOL, INT, MANIFEST, Graph, StageName, TensorSpec, kv_specs, spec
from edgeflow.artifacts.sessions import Runtime, load_sessions
from edgeflow.engine.exported.flow import Bucket, FlowGraphs
from edgeflow.engine.placement import check_host, check_prompt, check_text
from edgeflow.engine.policy import Footprint, Placement
from edgeflow.models.grouped import CROSS, JOINT
from edgeflow.policies.flow.config import FlowCheckpoint
from edgeflow.policies.flow.policy import DenoisingPolicy, FlowArchitecture, Texts, TokenizedTexts, inputs_of
from edgeflow.policies.lerobot import UNNORM_KEYS
from edgeflow.policies.tensors import WeightNumbers
from edgeflow.text.checkpoint_json import Fields
from edgeflow_client.errors import CheckpointError, ConfigError


class OpenedFlow:
    """An artifact whose manifest fits its checkpoint; CheckpointError for one that is damaged, or of other sizes.

    sizes: of answers with the exported number of steps. buckets: of prompts. vocabulary: tokens that its towers embed.
    """

    def __init__(self, folder: Path, architecture: FlowArchitecture[Any]) -> None:
        self._folder = folder
        self._architecture = architecture
        self.manifest = open_artifact(folder, architecture.family)
        described = Fields(f"{MANIFEST}.preprocessing", self.manifest.preprocessing)
        self.steps = described.object("denoising").size("steps")
        self.sizes = replace(architecture.sizes, steps=self.steps, candidates=1)
        self.buckets = tuple(self._buckets())
        self.vocabulary = described.count("vocabulary")

    def load(self, runtime: Runtime) -> FlowGraphs:
        """Compare the files with the manifest and load the graphs."""
        sessions = load_sessions(self._folder, self.manifest, runtime)
        return FlowGraphs(kv=self.manifest.kv, buckets=self.buckets, **sessions)

    def _buckets(self) -> Iterator[Bucket]:
        """The buckets of the manifest; CheckpointError for graphs of other shapes than the checkpoint gives."""
        manifest, heads = self.manifest, self._architecture.stacks.heads
        kv, closing = manifest.kv, self.sizes.closing
        expect_kv(kv, len(heads.kinds), heads.kv_heads, heads.head_dim)
        if len(kv.kinds) != kv.layers or not set(kv.kinds) <= {JOINT, CROSS}:
            raise CheckpointError(f"{MANIFEST}.kv.kinds: expected {JOINT} or {CROSS} for each of {kv.layers} layers")
        images, image_rows = self._architecture.flow.images, self._architecture.vision.rows
        fixed = images * image_rows + closing
        towers, prefills = manifest.of(StageName.TOWERS), manifest.of(StageName.PREFILL)
        rows = [graph.rows for graph in towers]
        if rows != [graph.rows for graph in prefills] or len(set(rows)) < len(rows) or rows[0] <= fixed:
            raise CheckpointError(
                f"{MANIFEST} has towers of {rows} rows and prefills of {[graph.rows for graph in prefills]}; expected "
                f"both in the same sizes, above {fixed}: {AGAIN}"
            )
        if kv.positions != rows[-1] or manifest.text != rows[-1] - fixed:
            raise CheckpointError(
                f"{MANIFEST} has {kv.positions} positions and texts of {manifest.text} tokens; its prefills "
                f"have {rows[-1]} rows: {AGAIN}"
            )
        for tower, prefill in zip(towers, prefills, strict=True):
            self._check_prefix(tower, prefill, tower.rows - fixed)
        for step in manifest.of(StageName.STEP):
            expect_tensors(step, list(self._step_inputs(step.batch)), [self._velocity(step.batch)])
        for each in rows:
            yield Bucket(images=images, image_rows=image_rows, text=each - fixed, closing=closing)

    def _check_prefix(self, tower: Graph, prefill: Graph, text: int) -> None:
        rows, flow = tower.rows, self._architecture.flow
        width = next((each.shape[-1] for each in tower.outputs if each.shape), 0)
        hidden = spec("hidden", 1, rows, width)
        inputs = [
            spec("pixel_values", flow.images, 3, flow.side, flow.side),
            spec("prompt_ids", text, dtype=INT),
            *([spec("state", 1, flow.state_dims)] if any(each.name == "state" for each in tower.inputs) else []),
        ]
        expect_tensors(tower, inputs, [hidden])
        kv_rows = list(kv_specs(self.manifest.kv, 1, rows, "_rows"))
        expect_tensors(prefill, [hidden, *place_specs(1, rows, rows)], kv_rows)

    def _step_inputs(self, batch: int) -> Iterator[TensorSpec]:
        sizes, kv = self.sizes, self.manifest.kv
        yield self._velocity(batch, "x")
        yield spec("times", batch, sizes.horizon, dtype=INT)
        if sizes.state:
            yield spec("state", batch, sizes.state)
        yield from place_specs(batch, sizes.rows, kv.positions + sizes.rows)
        if CROSS in kv.kinds:
            yield spec("crossing", batch, sizes.rows, dtype=INT)
            yield spec("crossed", batch, sizes.rows, kv.positions, dtype=BOOL)
        yield from kv_specs(kv, batch, kv.positions)

    def _velocity(self, batch: int, name: str = "velocity") -> TensorSpec:
        return spec(name, batch, self.sizes.horizon, self.sizes.dims)


class StaticFlow:
    """The folder of an artifact (engine/policy.Published). CheckpointError for one that is damaged, or of another
    checkpoint's sizes; ConfigError for settings that it was not exported for.
    """

    unnorm_keys = UNNORM_KEYS

    def __init__(self, directory: Path, checkpoint: FlowCheckpoint[Any], architecture: FlowArchitecture[Any]) -> None:
        self._directory = directory
        self._checkpoint = checkpoint
        self._architecture = architecture
        self.inputs = inputs_of(checkpoint)
        self._opened = opened = OpenedFlow(directory, architecture)
        settings = checkpoint.settings
        if settings.steps not in (None, opened.steps):
            raise ConfigError(
                f"policy.steps: {settings.steps}; this artifact was exported for {opened.steps}: remove it, or export "
                "the model again"
            )
        self._sizes = replace(opened.sizes, candidates=settings.candidates)

    def footprint(self, dtype: torch.dtype) -> Footprint:
        """Memory of graphs and weights, and of sessions, whose slots are as long as the longest bucket."""
        stored = loaded_bytes(self._directory, self._opened.manifest)
        weights = WeightNumbers(decoder=0, floats=0, others=-(-stored // dtype.itemsize))
        found = self._architecture.footprint(weights, self._sizes, dtype)
        return replace(found, capacity=self._opened.manifest.kv.positions, graphs=False)

    def load(self, placement: Placement) -> DenoisingPolicy:
        """Load graphs and tokenizer; CheckpointError says what is wrong with them."""
        check_host(placement.device, str(placement.dtype).removeprefix("torch."))
        processors = self._checkpoint.processors
        graphs = self._opened.load(placement.runtime)
        tokenized = TokenizedTexts(processors.tokenizer, processors.tokens, self._opened.vocabulary)
        texts = BucketTexts(self._architecture.texts(tokenized), self._opened.manifest.text)
        policy = DenoisingPolicy(
            self._checkpoint,
            self._architecture,
            sizes=self._sizes,
            network=graphs,
            texts=texts,
            placement=placement,
        )
        check_text(policy)
        return policy


class BucketTexts:
    """Prompts of at most so many tokens, those of the longest bucket (policies/flow/policy.Texts)."""

    def __init__(self, texts: Texts, most: int) -> None:
        self._texts = texts
        self._most = most

    def ids(self, task: str, state: NDArray[np.float32]) -> tuple[int, ...]:
        """The prompt of a frame; InvalidArgument for one that no bucket holds."""
        ids = self._texts.ids(task, state)
        check_prompt(len(ids), self._most)
        return ids

    def most_rows(self, task: str) -> int:
        """The most tokens of a task's prompt with any state."""
        rows = self._texts.most_rows(task)
        check_prompt(rows, self._most)
        return rows
