"""The AWQ search of one block: scales of every scale group, then clip limits (order and formulas of AutoAWQ).

Every scale group is searched on the unmodified block, with only its own linears quantised. Then all scales are
applied, and the limits are searched on the scaled weights with inputs divided by the scales.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from edgeflow.kernels.awq import rounded
from edgeflow.lab.quantize.search.block import (
    DOWN,
    GATE,
    INPUT_NORM,
    KEY,
    LINEARS,
    OUTPUT,
    POST_NORM,
    QUERY,
    UP,
    VALUE,
    BlockRun,
    DecoderBlock,
    Rotation,
)
from edgeflow.lab.quantize.search.choices import BlockChoice, GroupChoice
from edgeflow.lab.quantize.search.clipping import clip_limits, clipped_linears, sampled
from edgeflow.lab.quantize.search.scales import (
    ChannelStatistics,
    ScaleForm,
    candidates,
    input_means,
    weight_means,
)

Counted = Sequence[Tensor] | None
"""The rows of each batch that count in the losses, bool [B, L]; None for all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSettings:
    """The settings of a search."""

    group: int
    """G, the inputs per group."""
    form: ScaleForm = ScaleForm.DUO
    """Formula of the scales."""
    identity: bool = True
    """Also try s = 1."""
    clip: bool = True
    """Also search clip limits."""


@dataclass(frozen=True, slots=True)
class ScaleGroup:
    """Linears that share scales."""

    previous: str
    scaled: tuple[str, ...]
    measured: Callable[[DecoderBlock, Tensor, Rotation], Tensor]
    """The part of the block whose output error is the loss."""


def scale_groups(block: DecoderBlock) -> list[ScaleGroup]:
    """The scale groups of a block. The output projection is in one only if it and the values have the same shape and
    nothing else reads the values.
    """
    groups = [
        ScaleGroup(INPUT_NORM, (QUERY, KEY, VALUE), lambda block, x, rotation: block.attention(x, rotation)),
        ScaleGroup(VALUE, (OUTPUT,), lambda block, x, _: block.linear(OUTPUT, x)),
        ScaleGroup(POST_NORM, (GATE, UP), lambda block, x, _: block.mlp(x)),
        ScaleGroup(UP, (DOWN,), lambda block, x, _: block.linear(DOWN, x)),
    ]
    alike = block.weight(VALUE).shape == block.weight(OUTPUT).shape
    own = alike and not block.shape.outside
    return groups if own else [group for group in groups if group.previous != VALUE]


def run_batches(block: DecoderBlock, batches: Sequence[Tensor], rotation: Rotation) -> list[BlockRun]:
    """A pass through the unchanged block for every batch [B, L, E]."""
    return [block.run(batch, rotation) for batch in batches]


def search_block(
    block: DecoderBlock, runs: Sequence[BlockRun], rotation: Rotation, settings: SearchSettings, counted: Counted = None
) -> BlockChoice:
    """The scales and limits of a block.

    runs: of the calibration batches.
    """
    return Search(block=block, runs=runs, rotation=rotation, settings=settings, counted=counted).choice()


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Search:
    """The search of one block, step by step; the arguments are those of `search_block`."""

    block: DecoderBlock
    runs: Sequence[BlockRun]
    rotation: Rotation
    settings: SearchSettings
    counted: Counted = None

    def choice(self) -> BlockChoice:
        groups = tuple(map(self._scales, scale_groups(self.block)))
        scaled = BlockChoice(groups)
        return BlockChoice(groups, self.limits(scaled)) if self.settings.clip else scaled

    def statistics(self, group: ScaleGroup) -> ChannelStatistics:
        """The statistics from which the scales of a group are computed."""
        rows = torch.cat([x.flatten(0, -2) for x in self._inputs(group)])
        weights = [self.block.weight(name) for name in group.scaled]
        return ChannelStatistics(input_means(rows), weight_means(weights, self.settings.group))

    def losses(self, group: ScaleGroup, tried: Iterable[Tensor]) -> list[float]:
        """The loss for each of the given scales [E]."""
        inputs = self._inputs(group)
        wanted = self._measured(group, self.block, inputs)

        def loss(scales: Tensor) -> float:
            changed = {f"{name}.weight": self._quantised(self.block.weight(name), scales) for name in group.scaled}
            return _mean_square(self._measured(group, self.block.with_tensors(changed), inputs), wanted)

        return [loss(scales) for scales in tried]

    def limits(self, scaled: BlockChoice) -> dict[str, Tensor]:
        """The limits of each clipped linear.

        scaled: the scales of all groups.
        """
        limits = {}
        for name in clipped_linears(LINEARS):
            inputs = [self._rows(run.inputs[name], batch).flatten(0, -2) for batch, run in enumerate(self.runs)]
            rows, scales = sampled(torch.cat(inputs)), scaled.input_scales(name)
            rows = rows if scales is None else rows / scales
            limits[name] = clip_limits(scaled.linear(name, self.block.weight(name)), rows, self.settings.group)
        return limits

    def _scales(self, group: ScaleGroup) -> GroupChoice:
        """The first candidate with the smallest loss."""
        form, identity = self.settings.form, self.settings.identity
        tried = list(candidates(form, self.statistics(group), identity=identity))
        losses = self.losses(group, [candidate.scales for candidate in tried])
        best = tried[losses.index(min(losses))]
        return GroupChoice(
            previous=group.previous,
            scaled=group.scaled,
            ratio=best.ratio,
            scales=best.scales,
            losses=torch.tensor(losses, dtype=torch.float64),
        )

    def _inputs(self, group: ScaleGroup) -> list[Tensor]:
        return [run.inputs[group.scaled[0]] for run in self.runs]  # all linears of a group read the same rows

    def _quantised(self, weight: Tensor, scales: Tensor) -> Tensor:
        # the scales divide the inputs of the real checkpoint; here the rounded weight is divided, which is the same
        return rounded(weight * scales, self.settings.group).values.div_(scales)

    def _measured(self, group: ScaleGroup, block: DecoderBlock, inputs: Sequence[Tensor]) -> list[Tensor]:
        """The measured output of each batch, only in the rows that count."""
        return [self._rows(group.measured(block, x, self.rotation), batch) for batch, x in enumerate(inputs)]

    def _rows(self, x: Tensor, batch: int) -> Tensor:
        """The rows of a batch that count."""
        return x if self.counted is None else x[self.counted[batch]]


def _mean_square(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> float:
    """The mean of the squared difference over all batches."""
    # in float64, since the best candidates differ only slightly
    total = sum((a - b).square_().sum(dtype=torch.float64).item() for a, b in zip(found, wanted, strict=True))
    return total / sum(each.numel() for each in wanted)
