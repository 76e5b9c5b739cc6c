"""Flow-matching policies that were exported as static graphs (docs/npu.md)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from edgeflow.artifacts.files import loaded_bytes
from edgeflow.engine.exported.flow import StaticNetwork
from edgeflow.engine.exported.placement import check_placement
from edgeflow.engine.policy import INSTRUCTION, Footprint, Placement
from edgeflow.policies.flow.checkpoint import FlowCheckpoint
from edgeflow.policies.flow.exported.form import load_graphs, open_flow
from edgeflow.policies.flow.footprint import WeightNumbers, footprint
from edgeflow.policies.flow.policy import UNNORM_KEYS, DenoisingPolicy
from edgeflow.policies.flow.prompts import Texts, TokenizedTexts
from edgeflow.policies.flow.published import FlowArchitecture, policy_of
from edgeflow_client.errors import CheckpointError, ConfigError, InvalidArgument
from edgeflow_client.reasons import Reason


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
    """Prompts of at most so many tokens, those of the longest bucket (policies/flow/prompts.Texts)."""

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
