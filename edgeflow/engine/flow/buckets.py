"""The rows of static graphs of a flow policy, and what they see.

A bucket has places for every camera and for a number of tokens. A frame may have fewer: nothing sees the places that
are left over. Positions and masks are those of the packed layout (packed.py), spread over the bucket's places.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from edgeflow.engine.flow.frames import FlowSizes
from edgeflow.engine.flow.packed import FlowLayouts, FlowPlaces
from edgeflow.engine.flow.policy import PrefixSegment, StepSegment
from edgeflow.kernels.kv.layout import PackedLayout
from edgeflow.models.grouped import CROSS

CPU = torch.device("cpu")
KEPT = 64  # kinds of frames whose masks are kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """The prefix of static graphs: rows of images, text, and closing rows, in this order.

    cameras: C. image_rows: of each. text: tokens. closing: as of FlowSizes.
    """

    cameras: int
    image_rows: int
    text: int
    closing: int

    @property
    def rows(self) -> int:
        """P"""
        return self.cameras * self.image_rows + self.text + self.closing

    def used(self, cameras: int, tokens: int) -> Tensor:
        """The places of a frame's rows, in their order [L_P] int64; ValueError for a frame that does not fit."""
        if not 0 < cameras <= self.cameras or not 0 <= tokens <= self.text:
            raise ValueError(
                f"{cameras} cameras and {tokens} tokens in a bucket of {self.cameras} cameras and {self.text} tokens"
            )
        images, text = cameras * self.image_rows, self.cameras * self.image_rows
        return torch.cat(
            [torch.arange(images), torch.arange(text, text + tokens), torch.arange(self.rows - self.closing, self.rows)]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixMask:
    """Inputs of a prefill. position [1, P] int64; seen [1, P, P] bool."""

    position: Tensor
    seen: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMask:
    """Inputs of one candidate in a step, over T places of a slot. position [R] int64; seen [R, T + R] bool.

    crossing [R], crossed [R, T]: the same in layers that read the prefix alone; None where there are none.
    """

    position: Tensor
    seen: Tensor
    crossing: Tensor | None
    crossed: Tensor | None


class BucketMasks:
    """Positions and masks of one bucket. kinds: of the layers. past: T, places of a slot."""

    def __init__(self, bucket: Bucket, sizes: FlowSizes, kinds: tuple[str, ...], past: int) -> None:
        self.bucket = bucket
        self._past = past
        self._cross = CROSS in kinds
        self._layouts = FlowLayouts(replace(sizes, candidates=1), kinds, CPU)
        self.prefix = lru_cache(KEPT)(self._prefix)
        self.step = lru_cache(KEPT)(self._step)

    def _prefix(self, cameras: int, tokens: int) -> PrefixMask:
        used, rows = self.bucket.used(cameras, tokens), self.bucket.rows
        joint = self._places(len(used), step=False).rows.joint
        position, seen = torch.zeros(rows, dtype=torch.long), torch.eye(rows, dtype=torch.bool)
        position[used] = joint.rope_position[0]
        seen[used[:, None], used] = joint.seen()
        return PrefixMask(position=position[None], seen=seen[None])

    def _step(self, cameras: int, tokens: int) -> StepMask:
        used = self.bucket.used(cameras, tokens)
        layout = self._places(len(used), step=True).rows
        joint, cross = self._spread(layout.joint, used), layout.cross
        crossed = None if cross is None else self._spread(cross, used)[:, : self._past]
        return StepMask(
            position=layout.joint.rope_position[0],
            seen=joint,
            crossing=None if cross is None else cross.rope_position[0],
            crossed=crossed,
        )

    def _spread(self, layout: PackedLayout, used: Tensor) -> Tensor:
        """[R, T + R] of what rows see in a slot that holds a frame's rows without gaps, and themselves behind."""
        seen, prefix = layout.seen(), len(used)
        spread = torch.zeros(len(seen), self._past + len(seen), dtype=torch.bool)
        spread[:, used] = seen[:, :prefix]
        spread[:, self._past :] = seen[:, prefix : prefix + len(seen)]
        return spread

    def _places(self, prefix: int, *, step: bool) -> FlowPlaces:
        if step:
            return self._layouts.of([], [StepSegment(slot=0, prefix=prefix, step=1)], [])
        return self._layouts.of([PrefixSegment(slot=0, rows=prefix)], [], [[]])
