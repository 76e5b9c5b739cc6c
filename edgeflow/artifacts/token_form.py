"""The graphs of a model that decodes tokens: what they must take and give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgeflow.artifacts.files import AGAIN, expect_tensors
from edgeflow.artifacts.manifest import MANIFEST, Manifest, StageName, TensorSpec
from edgeflow.artifacts.tensors import BOOL, INT, kv_specs, spec
from edgeflow_client.errors import CheckpointError


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenForm:
    """The sizes of a checkpoint's graphs. width: E. vocabulary: V. images: inputs of the towers besides tokens.
    chunks: prefills run behind what a slot holds.
    """

    layers: int
    kv_heads: int
    head_dim: int
    width: int
    vocabulary: int
    images: tuple[TensorSpec, ...]
    chunks: bool

    def fixed_rows(self, manifest: Manifest) -> int:
        """Rows of a prompt besides those of its text; CheckpointError for graphs of other shapes than these sizes give,
        or than the manifest's."""
        kv, towers, prefills = manifest.kv, manifest.of(StageName.TOWERS), manifest.of(StageName.PREFILL)
        found, wanted = (kv.layers, kv.kv_heads, kv.head_dim), (self.layers, self.kv_heads, self.head_dim)
        if found != wanted:
            raise CheckpointError(
                f"{MANIFEST}.kv has layers, KV heads and head width {list(found)}, and config.json {list(wanted)}: "
                f"{AGAIN}"
            )
        rows = [graph.rows for graph in towers]
        fixed = rows[-1] - manifest.text
        if rows != [graph.rows for graph in prefills] or len(set(rows)) < len(rows) or not 0 <= fixed < rows[0]:
            raise CheckpointError(
                f"{MANIFEST} has towers of {rows} rows, prefills of {[graph.rows for graph in prefills]} and texts of "
                f"{manifest.text} tokens, which do not fit: {AGAIN}"
            )
        if rows[-1] > kv.positions:
            raise CheckpointError(f"{MANIFEST} has prefills of {rows[-1]} rows and {kv.positions} positions: {AGAIN}")
        for tower, prefill in zip(towers, prefills, strict=True):
            hidden = spec("hidden", 1, tower.rows, self.width)
            ids = spec("ids", 1, tower.rows - fixed, dtype=INT)
            expect_tensors(tower, [*self.images, ids], [hidden])
            past = kv.positions if self.chunks else 0
            if prefill.past != past:
                raise CheckpointError(
                    f"{MANIFEST}: {prefill.file} has a past of {prefill.past} positions; expected {past}: {AGAIN}"
                )
            inputs = [hidden, *_places(1, tower.rows, past + tower.rows), spec("sampled", 1, dtype=INT)]
            inputs += kv_specs(kv, 1, past) if past else ()
            expect_tensors(prefill, inputs, [spec("logits", 1, self.vocabulary), *kv_specs(kv, 1, tower.rows, "_rows")])
        for step in manifest.of(StageName.STEP):
            inputs = [spec("ids", step.batch, 1, dtype=INT), *_places(step.batch, 1, kv.positions + 1)]
            inputs += kv_specs(kv, step.batch, kv.positions)
            logits = spec("logits", step.batch, self.vocabulary)
            expect_tensors(step, inputs, [logits, *kv_specs(kv, step.batch, 1, "_rows")])
        return fixed


def _places(batch: int, rows: int, seen: int) -> Sequence[TensorSpec]:
    return [spec("position", batch, rows, dtype=INT), spec("seen", batch, rows, seen, dtype=BOOL)]
