"""The inputs of a pass, whole numbers and payloads in one buffer: staged by the host, viewed on the device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from edgeflow.engine.contract import Contract
from edgeflow.engine.shapes import PassShape
from edgeflow.kernels.kv.layout import PackedLayout, Span
from edgeflow.kernels.kv.sees import Sees
from edgeflow.scheduler.plan import Pass, Segment

CONTINUES = -1
GUESSLESS = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class PassInputs:
    """Views of one buffer of bytes on the device, and the layout that the program places rows in.

    Of the segments [N]: slots; starts: where rows enter, CONTINUES at the length of the slot; rows, without padding.
    Of the rows [L_Q]: row_segment, row_offset: the segment of each, and its place there; both empty where every
    segment is one row. Of the sampled rows [n]: owner, the segment of each; empty where they are one of each segment.
    Where a segment samples several rows: of the segments that sample, spread [S, R], its rows among the sampled ones,
    the last repeated, and counts [S], without padding; of all segments, tolerance [N]. Where prompts have drafts:
    guesses [P, 3], for each the slot and position at which they are read, and the rows of the prompt; slot GUESSLESS
    for the first guess; drafts, which of the sampled rows are drafts behind a prompt.
    moves [M, 3]. numbers: of each prefill (engine/contract.py). All int64. payload: bytes.
    """

    slots: Tensor
    starts: Tensor
    rows: Tensor
    row_segment: Tensor
    row_offset: Tensor
    owner: Tensor
    spread: Tensor
    drafts: Tensor
    counts: Tensor
    tolerance: Tensor
    guesses: Tensor
    moves: Tensor
    numbers: tuple[Tensor, ...]
    payload: Tensor
    layout: PackedLayout

    @classmethod
    def over(
        cls,
        buffer: Tensor,
        shape: PassShape,
        contract: Contract,
        places: tuple[Span, ...] | None = None,
        *,
        folding: bool = False,
    ) -> PassInputs:
        """The views of a buffer of `input_bytes`. places: where the host may branch on them. folding: rows may be
        rotated by other positions than their places.
        """
        sections = _sections_of(shape, contract)
        integers = buffer[: 8 * sections.total].view(torch.long)
        empty = integers[:0]
        views = [integers[part] if part.stop > part.start else empty for part in sections.parts]
        (
            slots,
            starts,
            rows,
            row_segment,
            row_offset,
            owner,
            spread,
            drafts,
            counts,
            sampled,
            moves,
            tolerance,
            guesses,
            *numbers,
        ) = views
        length = sum(shape.lengths)
        single = shape.single_rows
        turned = folding or contract.components > 1 or shape.tree
        row_position = integers.new_empty(length)
        layout = PackedLayout(
            lengths=shape.lengths,
            reach=shape.reach,
            row_slot=slots if single else integers.new_empty(length),
            row_position=row_position,
            rope_position=integers.new_empty(contract.components, length) if turned else row_position[None],
            sampled_rows=sampled,
            samples=shape.samples,
            places=places,
            live=None if single or places is not None else integers.new_empty(length, dtype=torch.bool),
            sees=_of_trees(integers, length) if shape.tree else None,
            gated=shape.gated,
        )
        return cls(
            slots=slots,
            starts=starts,
            rows=rows,
            row_segment=row_segment,
            row_offset=row_offset,
            owner=owner,
            spread=spread.view(len(counts), -1) if len(counts) else spread,
            drafts=drafts,
            counts=counts,
            tolerance=tolerance,
            guesses=guesses.view(-1, 3) if len(guesses) else guesses,
            moves=moves.view(-1, 3) if shape.moves else moves,
            numbers=tuple(numbers),
            payload=buffer[8 * sections.total :] if shape.prefills else empty,
            layout=layout,
        )


def _of_trees(like: Tensor, rows: int) -> Sees:
    """Room for what rows see that stand in trees."""
    return Sees(like.new_empty(rows, 2, 2), like.new_empty(rows), like.new_empty(rows))


def input_bytes(shape: PassShape, contract: Contract) -> int:
    """Size of the buffer behind PassInputs."""
    return 8 * _sections_of(shape, contract).total + sum(map(contract.payload_bytes, shape.prefills))


def harmless(shape: PassShape, contract: Contract, slot: int) -> list[int]:
    """Whole numbers of a pass whose segments all lie at the start of one slot."""
    lines = zip(shape.lengths, shape.samples, strict=True)
    segments = [_Numbers(slot=slot, start=0, rows=rows, samples=samples) for rows, samples in lines]
    numbers: list[Sequence[int]] = [[0] * contract.count(rows) for rows in shape.prefills]
    return _filled(shape, contract, segments, [(slot, slot, 0)] * shape.moves, numbers)


def stage(
    planned: Pass[Any],
    prompts: Mapping[Any, Any],
    shape: PassShape,
    contract: Contract,
    *,
    scratch: int,
    pinned: bool,
) -> list[Tensor]:
    """A pass's inputs in pieces, bytes that lie end to end on the device: whole numbers, then each prompt's payload.

    scratch: the slot of segments that only pad the pass. Memory of the host is the pass's own: what the device still
    reads is never written over.
    """
    segments = [_Numbers.of(each) for each in planned.segments]
    segments += [_Numbers(slot=scratch, start=0, rows=1, samples=1)] * (shape.segments - len(segments))
    moves = [(move.source, move.target, move.length) for move in planned.moves]
    moves += [(scratch, scratch, 0)] * (shape.moves - len(moves))
    given = [prompts[segment.sequence] for segment in planned.prefills]
    numbers = [contract.numbers(prompt, rows) for prompt, rows in zip(given, shape.prefills, strict=True)]
    whole = torch.tensor(_filled(shape, contract, segments, moves, numbers))
    pieces = [whole.view(torch.uint8)]
    for prompt, rows in zip(given, shape.prefills, strict=True):
        payload = contract.payload(prompt).reshape(-1).view(torch.uint8)
        missing = contract.payload_bytes(rows) - len(payload)
        pieces += [payload, payload.new_zeros(missing)] if missing else [payload]
    return [piece.pin_memory() if pinned and piece.is_cpu else piece for piece in pieces]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Numbers:
    """The whole numbers of a segment."""

    slot: int
    start: int
    rows: int
    samples: int
    tolerance: int = 0
    guess: tuple[int, int] = (GUESSLESS, 0)

    @classmethod
    def of(cls, segment: Segment[Any]) -> _Numbers:
        start = CONTINUES if segment.stage else segment.start
        guess = (segment.guess.slot, segment.guess.position) if segment.guess else (GUESSLESS, 0)
        return cls(
            slot=segment.slot,
            start=start,
            rows=segment.length,
            samples=segment.samples,
            tolerance=segment.tolerance_bins,
            guess=guess,
        )


def _filled(
    shape: PassShape,
    contract: Contract,
    segments: Sequence[_Numbers],
    moves: Sequence[tuple[int, int, int]],
    numbers: Sequence[Sequence[int]],
) -> list[int]:
    """All whole numbers of a pass."""
    sections = _sections_of(shape, contract)
    sampled: list[int] = []
    for first, each, count in zip(sections.firsts, segments, shape.samples, strict=True):
        from_row = first + each.rows - each.samples
        sampled += range(from_row, from_row + count)  # padding follows the rows that are sampled
    varying: list[tuple[int, Sequence[int]]] = [
        (SLOTS, [each.slot for each in segments]),
        (STARTS, [each.start for each in segments]),
        (ROWS, [each.rows for each in segments]),
        (SAMPLED, sampled),
        (MOVES, [each for move in moves for each in move]),
    ]
    if shape.most_samples > 1:
        sampling = zip(segments, shape.samples, strict=True)
        varying += [
            (COUNTS, [each.samples for each, samples in sampling if samples]),
            (TOLERANCE, [each.tolerance for each in segments]),
        ]
    if shape.drafts:
        prompts = segments[: len(shape.prefills)]
        varying += [(GUESSES, [each for row in prompts for each in (*row.guess, row.rows - row.samples + 1)])]
    whole = list(sections.constants)
    for index, values in (*varying, *enumerate(numbers, start=GUESSES + 1)):
        first = sections.parts[index].start
        whole[first : first + len(values)] = values
    return whole


@dataclass(frozen=True, slots=True)
class _Sections:
    """Where the whole numbers of a shape lie, in the order of PassInputs.over: slots, starts, rows, row_segment,
    row_offset, owner, spread, drafts, counts, sampled rows, moves, tolerance, guesses, and those of each prefill.

    constants: those that follow from the shape, and zeros. firsts: first row of each segment.
    """

    parts: tuple[slice, ...]
    total: int
    constants: tuple[int, ...]
    firsts: tuple[int, ...]


SLOTS, STARTS, ROWS, COUNTS, SAMPLED, MOVES, TOLERANCE, GUESSES = 0, 1, 2, 8, 9, 10, 11, 12
"""Places in `_Sections.parts` of sections that vary."""


def _sections_of(shape: PassShape, contract: Contract) -> _Sections:
    return _sections(shape, tuple(map(contract.count, shape.prefills)))


@lru_cache(maxsize=1024)
def _sections(shape: PassShape, counts: tuple[int, ...]) -> _Sections:
    """counts: whole numbers of each prefill. The key holds numbers alone, so that no model is kept alive."""
    sizes = _section_sizes(shape, counts)
    starts = _firsts([_even(size) for size in sizes])
    parts = tuple(slice(start, start + size) for start, size in zip(starts, sizes, strict=True))
    whole = [0] * sum(map(_even, sizes))
    lengths = () if shape.single_rows else shape.lengths
    constants = [
        [index for index, length in enumerate(lengths) for _ in range(length)],
        [at for length in lengths for at in range(length)],
        *_sampling_sections(shape),
    ]
    for part, values in zip(parts[3:8], constants, strict=True):
        whole[part] = values
    return _Sections(parts, len(whole), tuple(whole), tuple(_firsts(shape.lengths)))


def _sampling_sections(shape: PassShape) -> list[list[int]]:
    """owner, spread and drafts."""
    if shape.samples_each:
        return [[], [], []]
    owner = [index for index, samples in enumerate(shape.samples) for _ in range(samples)]
    if shape.most_samples == 1:
        return [owner, [], []]
    counts, most = [samples for samples in shape.samples if samples], shape.most_samples
    runs = zip(_firsts(counts), counts, strict=True)
    spread = [first + min(at, count - 1) for first, count in runs for at in range(most)]
    of_prompts = zip(_firsts(shape.samples), shape.samples[: len(shape.prefills)], strict=False)
    return [owner, spread, [at for first, count in of_prompts for at in range(first + 1, first + count)]]


def _firsts(lengths: Sequence[int]) -> list[int]:
    """Where each of several runs begins when they lie end to end."""
    return list(accumulate(lengths, initial=0))[:-1]


def _section_sizes(shape: PassShape, counts: Sequence[int]) -> list[int]:
    segments, rows = shape.segments, 0 if shape.single_rows else sum(shape.lengths)
    sampled, sampling = sum(shape.samples), sum(samples > 0 for samples in shape.samples)
    several = sampling if shape.most_samples > 1 else 0
    sizes = [segments, segments, segments, rows, rows]
    drafts = sum(max(samples - 1, 0) for samples in shape.samples[: len(shape.prefills)])
    sizes += [0 if shape.samples_each else sampled, several * shape.most_samples, drafts, several]
    sizes += [sampled, 3 * shape.moves, segments if several else 0, 3 * len(shape.prefills) * (shape.drafts > 0)]
    return [*sizes, *counts]


def _even(count: int) -> int:
    """Sections begin at multiples of 16 bytes: Triton compiles a kernel again for a pointer that does not."""
    return count + count % 2
