"""Tokens of a model by its stages of fixed shapes: towers, prefill, and greedy decode steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgeflow.artifacts.manifest import StageName
from edgeflow.engine.policy import PreparedFrame
from edgeflow.errors import ConfigError
from edgeflow.export.quantised.stage_runs import Array, Arrays, Run, StageKey, padded, stage_key
from edgeflow.static_graphs.stages import ModelProgram, kv_names
from edgeflow.static_graphs.tokens import TokenExport

PIXELS = "pixel_values"


class TokenLoop:
    """The stages of one bucket and one batch. text: tokens of the bucket. A prompt is one prefill."""

    def __init__(self, export: TokenExport, program: ModelProgram, text: int, batch: int) -> None:
        self._text, self._fixed = text, export.fixed_rows
        self._images = tuple(export.images)
        stages = {stage_key(stage): stage for stage in program.stages}
        rows = export.fixed_rows + text
        self.towers = stages[StageKey(StageName.TOWERS, rows, 1)]
        self.prefill = stages[StageKey(StageName.PREFILL, rows, 1)]
        self.step = stages[StageKey(StageName.STEP, 1, batch)]
        self._past = program.kv.positions

    def run(self, frames: Sequence[PreparedFrame], run: Run, tokens: int) -> list[list[int]]:
        """The first so many tokens [B][tokens] of B frames; ConfigError for a frame that does not fit."""
        begun = [self._prefix(frame, run, tokens) for frame in frames]
        lengths = np.array([length for length, _, _ in begun])
        past = {name: np.concatenate([kv[name] for _, _, kv in begun]) for name in begun[0][2]}
        found = [[int(first)] for _, first, _ in begun]
        for _ in range(tokens - 1):
            ids = np.array([[each[-1]] for each in found])
            logits, *rows = run(self.step, {"ids": ids, **self._places(lengths), **past})
            past = {name: _entered(past[name], new, lengths) for name, new in zip(past, rows, strict=True)}
            lengths = lengths + 1
            for each, row in zip(found, logits, strict=True):
                each.append(int(row.argmax()))
        return found

    def _prefix(self, frame: PreparedFrame, run: Run, tokens: int) -> tuple[int, int, Arrays]:
        """Rows of a prompt, its first token, and the slot behind it."""
        count = len(frame.prompt_ids)
        length = self._fixed + count
        if count > self._text or length + tokens - 1 > self._past:
            raise ConfigError(
                f"calibration: a frame has {count} tokens and {tokens} to answer, the bucket {self._text} and a slot "
                f"{self._past} positions: export larger ones"
            )
        ids = padded(np.array(frame.prompt_ids, np.int64), self._text)[None]
        (hidden,) = run(self.towers, self._image(frame) | {"ids": ids})
        rows, past = self.prefill.rows, self.prefill.past
        seen = np.zeros((1, rows, past + rows), bool)
        seen[0, :, past:] = np.eye(rows, dtype=bool)
        seen[0, :length, past : past + length] = np.tri(length, dtype=bool)
        given: Arrays = {
            "hidden": hidden,
            "position": padded(np.arange(length), rows)[None],
            "seen": seen,
            "sampled": np.array([length - 1]),
        }
        slots = {name: self.prefill.inputs[name].numpy() for name in self.prefill.inputs if name not in given}
        logits, *written = run(self.prefill, given | slots)
        kept = (padded(each[0, :length], self._past)[None] for each in written)
        return length, int(logits[0].argmax()), dict(zip(kv_names(len(written) // 2), kept, strict=True))

    def _image(self, frame: PreparedFrame) -> Arrays:
        return {PIXELS: frame.pixel_values.numpy()[None]} if self._images else {}

    def _places(self, lengths: Array) -> Arrays:
        seen = np.arange(self._past + 1) < lengths[:, None]
        seen[:, -1] = True
        return {"position": lengths[:, None], "seen": seen[:, None]}


def _entered(past: Array, new: Array, lengths: Array) -> Array:
    """Keys or values [B, T, KH, D] with a row more in each slot."""
    found = past.copy()
    found[np.arange(len(past)), lengths] = new[:, 0]
    return found
