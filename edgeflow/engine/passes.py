"""One pass as a program over device tensors: what it reads, what it does, what it leaves.

The host decides by the *shape* alone; everything else a pass differs in (pixels, prompts, slots, positions, stages,
moves) lies in one buffer. So the program can be run, or recorded once a shape and replayed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from edgeflow.engine.padding import padded_prefills
from edgeflow.engine.policy import PreparedFrame, TokenPolicy
from edgeflow.kernels.greedy import Greedy
from edgeflow.kernels.kv import KVSlots
from edgeflow.kernels.layout import PackedLayout, Span
from edgeflow.kernels.shapes import stage_of
from edgeflow.kernels.shift_kv import ShiftKVChain
from edgeflow.scheduler.plan import FrameRef, Pass


@dataclass(frozen=True, slots=True)
class PassShape:
    """prefills: rows of each, padding included; decodes: rows; moves: slot copies after the pass."""

    prefills: tuple[int, ...]
    decodes: int
    moves: int

    @classmethod
    def of(cls, planned: Pass, capacity: int | None = None) -> PassShape:
        """capacity: positions of a slot, where prefills are padded; None where they run as they are."""
        prefills, decodes = tuple(segment.length for segment in planned.prefills), len(planned.decodes)
        if capacity is not None:
            prefills = padded_prefills(prefills, decodes, capacity)
        return cls(prefills, decodes, len(planned.moves))

    @property
    def lengths(self) -> tuple[int, ...]:
        """Rows of each segment."""
        return (*self.prefills, *(1,) * self.decodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class PassInputs:
    """Views of one buffer of bytes on the device.

    row_slot, row_position [L_Q]; last_rows, slots, stages [N] of the segments; moves [M, 3]; texts: prompt ids of each
    prefill [t], all int64. pixels [B, C, h, w] float32. Rows that only pad a prefill follow its last one: they carry
    token 0, are written behind it in its slot, where the frame's next row replaces them, and nobody reads them before.
    """

    row_slot: Tensor
    row_position: Tensor
    last_rows: Tensor
    slots: Tensor
    stages: Tensor
    moves: Tensor
    texts: tuple[Tensor, ...]
    pixels: Tensor

    @classmethod
    def over(cls, buffer: Tensor, shape: PassShape, policy: TokenPolicy) -> PassInputs:
        """The views of a buffer of `input_bytes`."""
        counts = _counts(shape, policy)
        numbers = buffer[: 8 * sum(map(_even, counts))]
        parts = torch.split(numbers.view(torch.long), [_even(count) for count in counts])
        row_slot, row_position, last_rows, slots, stages, moves, *texts = (
            part[:count] for part, count in zip(parts, counts, strict=True)
        )
        pixels = buffer[len(numbers) :].view(torch.float32).view(-1, *policy.pixel_shape)
        return cls(
            row_slot=row_slot,
            row_position=row_position,
            last_rows=last_rows,
            slots=slots,
            stages=stages,
            moves=moves.view(-1, 3),
            texts=tuple(texts),
            pixels=pixels,
        )

    def layout(self, shape: PassShape, reach: int, places: tuple[Span, ...] | None = None) -> PackedLayout:
        """places: where the host may branch on them."""
        turn = self.row_position[None]
        return PackedLayout(
            lengths=shape.lengths,
            reach=reach,
            row_slot=self.row_slot,
            row_position=self.row_position,
            rope_position=turn,
            sampled_rows=self.last_rows,
            places=places,
        )


def input_bytes(shape: PassShape, policy: TokenPolicy) -> int:
    """Size of the buffer behind PassInputs."""
    pixels = len(shape.prefills) * math.prod(policy.pixel_shape)
    return 8 * sum(map(_even, _counts(shape, policy))) + 4 * pixels


def stage(
    planned: Pass, observations: Mapping[FrameRef, PreparedFrame], shape: PassShape, policy: TokenPolicy, pinned: bool
) -> list[Tensor]:
    """A pass's inputs in pieces, bytes that lie end to end on the device: the numbers, then each frame's pixels, which
    may be there already. Memory of the host is the pass's own: what the device still reads is never written over.
    """
    slots: list[int] = []
    positions: list[int] = []
    last: list[int] = []
    for segment, rows in zip(planned.segments, shape.lengths, strict=True):
        last.append(len(slots) + segment.length - 1)
        slots += [segment.slot] * rows
        positions += range(segment.start, segment.start + rows)
    frames = [observations[segment.frame] for segment in planned.prefills]
    texts = [
        _filled(frame.prompt_ids, rows - policy.image_tokens)
        for frame, rows in zip(frames, shape.prefills, strict=True)
    ]
    moves = [number for move in planned.moves for number in (move.source, move.target, move.length)]
    segments = [segment.slot for segment in planned.segments], [segment.stage for segment in planned.segments]
    sections = [slots, positions, last, *segments, moves, *texts]
    numbers = torch.tensor([number for section in sections for number in _filled(section, _even(len(section)))])
    pieces = [numbers, *(frame.pixel_values for frame in frames)]
    return [(piece.pin_memory() if pinned and piece.is_cpu else piece).view(torch.uint8).flatten() for piece in pieces]


def _counts(shape: PassShape, policy: TokenPolicy) -> list[int]:
    """Whole numbers of each section."""
    segments, rows = len(shape.lengths), sum(shape.lengths)
    texts = [count - policy.image_tokens for count in shape.prefills]
    return [rows, rows, segments, segments, segments, 3 * shape.moves, *texts]


def _even(count: int) -> int:
    """Sections begin at multiples of 16 bytes: Triton compiles a kernel again for a pointer that does not."""
    return count + count % 2


def _filled(values: Sequence[int], count: int) -> list[int]:
    return [*values, *[0] * (count - len(values))]


@dataclass(frozen=True, slots=True)
class PassOutputs:
    """results [N, K + 1] int64: of each segment its frame's tokens so far, and 1 while all their logits were finite.

    logits [N, V] that the last of those tokens were sampled from.
    """

    results: Tensor
    logits: Tensor


class PassProgram:
    """Embed, one packed forward, sample, gather, shift. Holds what slots remember besides their keys and values.

    greedy, shift: the operators of each stage of a pass.
    """

    def __init__(
        self, policy: TokenPolicy, kv: KVSlots, greedy: Mapping[str, Greedy], shift: Mapping[str, ShiftKVChain]
    ) -> None:
        self._policy = policy
        self._kv = kv
        self._greedy = greedy
        self._shift_kv = shift
        device = kv.data.device
        self._token_ids = torch.zeros(kv.slots, policy.K, dtype=torch.long, device=device)
        self._finite = torch.ones(kv.slots, dtype=torch.bool, device=device)

    def __call__(self, shape: PassShape, inputs: PassInputs, layout: PackedLayout) -> PassOutputs:
        decoder = self._policy.decoder
        hidden = decoder.forward_sampled(self._embed(shape, inputs), layout, self._kv)
        stage = stage_of(shape.lengths)
        logits = decoder.logits(hidden, stage)
        self._sample(inputs, logits, self._greedy[stage])
        finite = self._finite[inputs.slots, None]
        results = torch.cat([self._token_ids[inputs.slots], finite.long()], dim=1)
        self._shift(shape, inputs, self._shift_kv[stage])
        return PassOutputs(results, logits)

    def _embed(self, shape: PassShape, inputs: PassInputs) -> Tensor:
        """H [L_Q, E] (ActionFlow equation 1): prefills, then the last token of each frame in flight."""
        parts: list[Tensor] = []
        prefills = len(shape.prefills)
        if prefills:
            parts += self._policy.embed_rows(inputs.pixels, inputs.texts)
        if shape.decodes:
            last = self._token_ids[inputs.slots[prefills:], inputs.stages[prefills:] - 1]
            parts.append(self._policy.decoder.embed(last))
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def _sample(self, inputs: PassInputs, logits: Tensor, greedy: Greedy) -> None:
        """Greedy, over the whole vocabulary; token j of a frame goes to its slot's state."""
        slots, stages = inputs.slots, inputs.stages
        ids, finite = greedy(logits, 0, logits.shape[-1])
        self._token_ids[slots, stages] = ids
        self._finite[slots] = finite & (self._finite[slots] | (stages == 0))

    def _shift(self, shape: PassShape, inputs: PassInputs, shift_kv: ShiftKVChain) -> None:
        """No move reads what one before it has written (Pass.moves), so that all states move at once."""
        if shape.moves:
            for each in self._kv.tensors:
                shift_kv(each, inputs.moves)
            source, target = inputs.moves[:, 0], inputs.moves[:, 1]
            self._token_ids[target] = self._token_ids[source]
            self._finite[target] = self._finite[source]
