"""The stages of a model that decodes tokens: towers or embedding, prefill and decode step of the decoder
that serves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from edgeflow.artifacts.manifest import KVForm, StageName
from edgeflow.lab.export.graphs.stages import ModelProgram, StageGraph, kv_names, pairs
from edgeflow.lab.export.graphs.static import StaticKV, StaticLayout
from edgeflow.models.llama import LlamaDecoder
from edgeflow_client.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenExport:
    """A decoder and the shapes that it is exported for."""

    decoder: LlamaDecoder
    embed: Callable[..., Tensor]
    """Computes the rows of a prompt [1, P, E] from its inputs, the last of which is ids [1, t]."""
    images: Mapping[str, Tensor]
    """Examples of the inputs before the ids."""
    fixed_rows: int
    """Rows of a prompt in addition to those of its text."""
    text: tuple[int, ...]
    """Tokens of each bucket of prompts."""
    positions: int
    """T, the positions of a slot."""
    chunks: bool
    """True if prefills run in chunks, each after the content of a slot."""
    batches: tuple[int, ...]
    """Sequences per step, one graph for each number."""


def token_program(export: TokenExport) -> ModelProgram:
    """Towers and prefill of each bucket, and a step of each batch size; ConfigError for a bucket beyond the
    positions.
    """
    config, longest = export.decoder.config, export.fixed_rows + max(export.text)
    if export.positions > config.max_position_embeddings:
        raise ConfigError(
            f"positions: {export.positions}; the model has {config.max_position_embeddings}: export at most these"
        )
    if longest > export.positions:
        raise ConfigError(
            f"text: a bucket of {max(export.text)} tokens takes {longest} rows and a slot has {export.positions} "
            f"positions; export at most {export.positions - export.fixed_rows} tokens, or more positions"
        )
    stages = _TokenStages(export)
    text = sorted(export.text)
    return ModelProgram(
        stages=(
            *(stages.towers(each) for each in text),
            *(stages.prefill(export.fixed_rows + each) for each in text),
            *(stages.step(each) for each in sorted(export.batches)),
        ),
        kv=KVForm(
            layers=config.num_hidden_layers,
            kv_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
            positions=export.positions,
        ),
        text=text[-1],
        source=export,
    )


class _TokenStages:
    def __init__(self, export: TokenExport) -> None:
        self._export = export
        self._decoder = export.decoder
        self._config = config = export.decoder.config
        self._layers = config.num_hidden_layers
        self._rows = kv_names(self._layers, "_rows")
        self._run_once()

    def towers(self, text: int) -> StageGraph:
        export = self._export

        def run(*inputs: Tensor) -> Sequence[Tensor]:
            return [export.embed(*inputs)]

        return StageGraph(
            stage=StageName.TOWERS,
            run=run,
            inputs={**export.images, "ids": (torch.arange(text) % self._config.vocab_size)[None]},
            outputs=("hidden",),
            rows=export.fixed_rows + text,
        )

    def prefill(self, rows: int) -> StageGraph:
        decoder, past = self._decoder, self._export.positions if self._export.chunks else 0

        def run(hidden: Tensor, position: Tensor, seen: Tensor, sampled: Tensor, *given: Tensor) -> Sequence[Tensor]:
            kv = self._kv(given)
            last = decoder.forward_sampled(hidden[0], StaticLayout.over(position, seen, sampled), kv.slots)
            return [decoder.logits(last, "prefill"), *self._written(kv, 1)]

        seen = torch.cat([torch.zeros(rows, past, dtype=torch.bool), torch.ones(rows, rows).tril().bool()], dim=1)
        inputs = {
            "hidden": torch.zeros(1, rows, self._config.hidden_size),
            "position": torch.arange(rows)[None],
            "seen": seen[None],
            "sampled": torch.tensor([rows - 1]),
        }
        return StageGraph(
            stage=StageName.PREFILL,
            run=run,
            inputs=inputs | (self._past(1) if past else {}),
            outputs=("logits", *self._rows),
            rows=rows,
            past=past,
        )

    def step(self, batch: int) -> StageGraph:
        decoder, past = self._decoder, self._export.positions

        def run(ids: Tensor, position: Tensor, seen: Tensor, *given: Tensor) -> Sequence[Tensor]:
            kv, hidden = self._kv(given), decoder.embed(ids.flatten())
            rows = decoder.forward(hidden, StaticLayout.over(position, seen), kv.slots)
            return [decoder.logits(rows, "decode"), *self._written(kv, batch)]

        inputs = {
            "ids": (torch.arange(batch) % self._config.vocab_size)[:, None],
            "position": torch.zeros(batch, 1, dtype=torch.long),
            "seen": torch.ones(batch, 1, past + 1, dtype=torch.bool),
        }
        return StageGraph(
            stage=StageName.STEP,
            run=run,
            inputs=inputs | self._past(batch),
            outputs=("logits", *self._rows),
            rows=1,
            past=past,
            batch=batch,
        )

    def _run_once(self) -> None:
        """Run one row, so that the rotations, which the decoder computes once, become a constant of every graph."""
        with torch.no_grad():
            self.step(1).run(*self.step(1).inputs.values())

    def _kv(self, given: Sequence[Tensor]) -> StaticKV:
        past = list(pairs(given)) if given else [None] * self._layers
        return StaticKV(past, self._export.positions)

    def _past(self, batch: int) -> dict[str, Tensor]:
        shape = batch, self._export.positions, self._config.num_key_value_heads, self._config.head_dim
        return {name: torch.zeros(shape) for name in kv_names(self._layers)}

    def _written(self, kv: StaticKV, batch: int) -> list[Tensor]:
        """Keys and values of the graph's rows [B, R, KH, D], per layer."""
        return [each.reshape(batch, -1, *each.shape[1:]) for layer in kv.layers for each in layer.rows or ()]
