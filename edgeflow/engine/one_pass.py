"""Passes that answer a frame in one forward pass, the contract of policies that keep nothing between passes
(engine/executor.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from edgeflow.engine.buffers import BufferFields
from edgeflow.engine.executor import Chunked, PassContract
from edgeflow.engine.policy import OnePassPolicy
from edgeflow.engine.shapes import least, multiples
from edgeflow.scheduler.plan import Pass

BATCHES = (1, 2, 4)
"""The numbers of frames of passes that are replayed, and 3 where a pass has no more."""
TEXT_STEP = 64
"""Prompts are padded to a multiple of it, or to the longest, where passes are replayed."""


@dataclass(frozen=True, slots=True)
class BatchShape:
    """The shape of a pass."""

    frames: int
    tokens: int
    """Tokens of each prompt, padding included."""


class OnePasses(PassContract):
    """The frames of a pass are one batch. A waiting frame can be replaced by a newer one until its pass begins, so none
    is launched ahead.

    most: frames of a pass. tokens: of the longest prompt. example: makes a frame for recordings.
    """

    launches_ahead = False

    def __init__(self, policy: OnePassPolicy, most: int, tokens: int, example: Callable[[], Any]) -> None:
        self.device = policy.device
        self._policy = policy
        self._batches = tuple(sorted({*(batch for batch in BATCHES if batch <= most), min(most, BATCHES[-1])}))
        self._texts = tuple(min(each, tokens) for each in multiples(TEXT_STEP, 1, tokens))
        self._example = lru_cache(1)(example)
        self._fields: dict[BatchShape, BufferFields] = {}

    def shapes(self) -> list[BatchShape]:
        texts = self._texts if self._policy.prompt_tokens(self._example()) else (0,)
        return [BatchShape(batch, tokens) for batch in self._batches for tokens in texts]

    def shape(self, planned: Pass[Any], prompts: Mapping[Any, Any], *, waits: bool) -> BatchShape:  # noqa: ARG002
        tokens = [self._policy.prompt_tokens(prompts[segment.sequence]) for segment in planned.segments]
        return BatchShape(len(tokens), max(tokens))

    def fits(self, shape: BatchShape, planned: Pass[Any]) -> Iterator[BatchShape]:  # noqa: ARG002
        frames, tokens = least(self._batches, shape.frames), least((0, *self._texts), shape.tokens)
        if frames is not None and tokens is not None:
            yield BatchShape(frames, tokens)

    def stage(self, planned: Pass[Any], prompts: Mapping[Any, Any], shape: BatchShape) -> list[Tensor]:
        """A batch, filled up with its first frame."""
        frames = [prompts[segment.sequence] for segment in planned.segments]
        return self._staged([*frames, *frames[:1] * (shape.frames - len(frames))], shape)

    def program(self, buffer: Tensor, shape: BatchShape, planned: Pass[Any] | None) -> Callable[[], Tensor]:
        batch = self._fields[shape].views(buffer)
        return lambda: self._policy.run(batch, on_host=planned is not None and buffer.is_cpu)

    def harmless(self, shape: BatchShape) -> Tensor:
        """A batch of examples."""
        return torch.cat([each.to(self.device) for each in self._staged([self._example()] * shape.frames, shape)])

    def results(self, planned: Pass[Any], shape: BatchShape, ran: BatchShape, outputs: Tensor) -> Tensor:  # noqa: ARG002
        return outputs[: shape.frames]

    def outcomes(self, planned: Pass[Any], results: Tensor, ran: BatchShape) -> list[Chunked]:  # noqa: ARG002
        return [Chunked.of(each.sequence, chunk[None]) for each, chunk in zip(planned.segments, results, strict=True)]

    def _staged(self, frames: Sequence[Any], shape: BatchShape) -> list[Tensor]:
        batch = self._policy.batch(frames, shape.tokens)
        fields = self._fields.setdefault(shape, BufferFields.of(batch))
        return fields.pieces(batch)
