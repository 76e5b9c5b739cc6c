"""Computes chunks of a flow policy by its stages of fixed shapes: towers, prefill, and Euler steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from edgeflow.artifacts.manifest import StageName
from edgeflow.engine.exported.flow import Bucket, BucketMasks
from edgeflow.engine.flow.frames import FlowFrame
from edgeflow.lab.export.graphs.flow import FlowExport
from edgeflow.lab.export.graphs.stages import ModelProgram, kv_names
from edgeflow.lab.export.quantised.stage_runs import Arrays, Run, StageKey, padded, stage_key
from edgeflow_client.errors import ConfigError

Floats = NDArray[np.float32]
Candidate = tuple[FlowFrame, Tensor]
"""A frame and its noise [H, A]."""


@dataclass(frozen=True, slots=True, eq=False)
class Denoised:
    """The candidates of one run of the loop."""

    x: tuple[Floats, ...]
    """[B, H, A] before each step, and after the last."""
    velocity: tuple[Floats, ...]
    """Velocity of each step."""


def candidates_of(frames: Sequence[FlowFrame]) -> list[Candidate]:
    """All candidates of frames."""
    return [(frame, noise) for frame in frames for noise in frame.noise]


class FlowLoop:
    """The stages of one bucket and one batch size.

    program: the export. text: tokens of the bucket.
    """

    def __init__(self, export: FlowExport, program: ModelProgram, text: int, batch: int) -> None:
        self._sizes = export.sizes
        bucket = Bucket(images=export.images, image_rows=export.image_rows, text=text, closing=export.sizes.closing)
        self._masks = BucketMasks(bucket, export.sizes, export.network.decoder.kinds, program.kv.positions)
        stages = {stage_key(stage): stage for stage in program.stages}
        self.towers = stages[StageKey(StageName.TOWERS, bucket.rows, 1)]
        self.prefill = stages[StageKey(StageName.PREFILL, bucket.rows, 1)]
        self.step = stages[StageKey(StageName.STEP, export.sizes.rows, batch)]

    def run(self, candidates: Sequence[Candidate], run: Run, steps: int | None = None) -> Denoised:
        """Denoise B candidates.

        steps: only the first steps of the N. ConfigError for a frame that does not fit.
        """
        prefixes = {id(frame): self._prefix(frame, run) for frame, _ in candidates}
        fixed = [prefixes[id(frame)] for frame, _ in candidates]
        given = {name: np.concatenate([each[name] for each in fixed]) for name in fixed[0]}
        x = np.stack([noise.numpy() for _, noise in candidates])
        xs, velocities = [x], []
        for step in range(self._sizes.steps if steps is None else steps):
            given |= {"x": x, "times": np.full(x.shape[:2], step, np.int64)}
            (velocity,) = run(self.step, {name: given[name] for name in self.step.inputs})
            x = x + velocity * np.float32(-1.0 / self._sizes.steps)
            xs.append(x)
            velocities.append(velocity)
        return Denoised(tuple(xs), tuple(velocities))

    def _prefix(self, frame: FlowFrame, run: Run) -> Arrays:
        """The inputs of the steps of one candidate, except x and times."""
        bucket, cameras, tokens = self._masks.bucket, len(frame.pixel_values), len(frame.prompt_ids)
        try:
            prefix, step = self._masks.prefix(cameras, tokens), self._masks.step(cameras, tokens)
        except ValueError as error:
            raise ConfigError(f"calibration: a frame has {error}: export a larger bucket") from error
        state = frame.state.numpy()[None]
        ids = padded(np.array(frame.prompt_ids, np.int64), bucket.text)
        pixels = padded(frame.pixel_values.numpy(), bucket.images)
        (hidden,) = run(self.towers, {"pixel_values": pixels, "prompt_ids": ids, "state": state})
        mask = {name: each.numpy() for name, each in prefix.items()}
        rows = run(self.prefill, {"hidden": hidden, **mask})
        past = (padded(each[0], self.step.past)[None] for each in rows)
        found = dict(zip(kv_names(len(rows) // 2), past, strict=True))
        return found | {"state": state} | {name: each.numpy()[None] for name, each in step.items()}
