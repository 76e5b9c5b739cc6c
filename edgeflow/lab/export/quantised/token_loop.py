"""Computes tokens of a model by its stages of fixed shapes: towers, prefill, and greedy decode steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgeflow.artifacts.manifest import StageName
from edgeflow.engine.policy import PreparedFrame
from edgeflow.lab.export.graphs.stages import ModelProgram, kv_names
from edgeflow.lab.export.graphs.tokens import TokenExport
from edgeflow.lab.export.quantised.stage_runs import Array, Arrays, Run, StageKey, padded, stage_key
from edgeflow_client.errors import ConfigError

PIXELS = "pixel_values"


class TokenLoop:
    """The stages of one bucket and one batch size. text: tokens of the bucket.

    All steps of an answer use the same arrays for its slot: later rows enter them in place, where the masks of earlier
    inputs hide them. Copies of a slot for each token would not fit in memory.
    """

    def __init__(self, export: TokenExport, program: ModelProgram, text: int, batch: int) -> None:
        self._text, self._fixed = text, export.fixed_rows
        self._images = tuple(export.images)
        stages = {stage_key(stage): stage for stage in program.stages}
        rows = export.fixed_rows + text
        self.towers = stages[StageKey(StageName.TOWERS, rows, 1)]
        self.prefill = stages[StageKey(StageName.PREFILL, rows, 1)]
        self.step = stages[StageKey(StageName.STEP, 1, batch)]
        self._past = program.kv.positions
        self._heads = program.kv.kv_heads, program.kv.head_dim

    def run(self, frames: Sequence[PreparedFrame], run: Run, tokens: int) -> list[list[int]]:
        """The first `tokens` tokens of B frames [B][tokens]; ConfigError for a frame that does not fit."""
        begun = [self._prefix(frame, run, tokens) for frame in frames]
        lengths = np.array([length for length, _, _ in begun])
        past = {name: np.concatenate([kv[name] for _, _, kv in begun]) for name in begun[0][2]}
        found = [[int(first)] for _, first, _ in begun]
        for _ in range(tokens - 1):
            ids = np.array([[each[-1]] for each in found])
            logits, *rows = run(self.step, {"ids": ids, **self._places(lengths), **past})
            for slots, new in zip(past.values(), rows, strict=True):
                slots[np.arange(len(slots)), lengths] = new[:, 0]
            lengths = lengths + 1
            for each, row in zip(found, logits, strict=True):
                each.append(int(row.argmax()))
        return found

    def _prefix(self, frame: PreparedFrame, run: Run, tokens: int) -> tuple[int, int, Arrays]:
        """Rows of a prompt, its first token, and the slot after it."""
        chunks = self._chunks(frame, tokens)
        names, (kv_heads, width) = kv_names(len(self.prefill.outputs) // 2), self._heads
        slot = {name: np.zeros((1, self._past, kv_heads, width), np.float32) for name in names}
        held, first = 0, 0
        for ids in chunks:
            (hidden,) = run(self.towers, self._image(frame) | {"ids": padded(ids, self._text)[None]})
            count = self._fixed + len(ids)
            past = {name: each.copy() for name, each in slot.items()} if self.prefill.past else {}
            logits, *rows = run(self.prefill, {"hidden": hidden, **self._chunk(held, count), **past})
            for name, each in zip(names, rows, strict=True):
                slot[name][:, held : held + count] = each[:, :count]
            held, first = held + count, int(logits[0].argmax())
        return held, first, slot

    def _chunks(self, frame: PreparedFrame, tokens: int) -> list[Array]:
        """The ids of each chunk; a prompt is a single chunk if prefills do not read slots."""
        ids = np.array(frame.prompt_ids, np.int64)
        whole = self.prefill.past == 0
        if (whole and len(ids) > self._text) or self._fixed + len(ids) + tokens - 1 > self._past:
            raise ConfigError(
                f"calibration: a frame has {len(ids)} tokens and {tokens} to answer; a bucket has {self._text}, a slot "
                f"{self._past} positions: export larger ones"
            )
        return [ids[start : start + self._text] for start in range(0, max(len(ids), 1), self._text)]

    def _chunk(self, held: int, count: int) -> Arrays:
        """Masks and positions of a prefill's rows: `count` after the held ones; padding rows see themselves."""
        rows, past = self.prefill.rows, self.prefill.past
        seen = np.zeros((rows, past + rows), bool)
        seen[:, past:] = np.eye(rows, dtype=bool)
        seen[:count, : min(held, past)] = True
        seen[:count, past : past + count] = np.tri(count, dtype=bool)
        position = padded(held + np.arange(count), rows)
        return {"position": position[None], "seen": seen[None], "sampled": np.array([count - 1])}

    def _image(self, frame: PreparedFrame) -> Arrays:
        return {PIXELS: frame.pixel_values.numpy()[None]} if self._images else {}

    def _places(self, lengths: Array) -> Arrays:
        seen = np.arange(self._past + 1) < lengths[:, None]
        seen[:, -1] = True
        return {"position": lengths[:, None], "seen": seen[:, None]}
