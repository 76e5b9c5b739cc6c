"""The inputs of a pass, integers and payloads in one buffer: staged by the host, viewed on the device.

The integers lie in named sections, one after the other. `_sections` is the table of their names and sizes for a shape:
`stage` fills them in on the host, and `PassInputs.over` views them on the device.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any, Protocol

import torch
from torch import Tensor

from edgeflow.engine.shapes import PassShape
from edgeflow.kernels.kv.layout import PackedLayout, Span
from edgeflow.kernels.kv.visibility import Visibility
from edgeflow.models.network import TokenNetwork
from edgeflow.scheduler.plan import Move, Pass, Segment, SlotPosition


@dataclass(frozen=True, slots=True, eq=False)
class Drafting:
    """The drafts of an answer of K tokens: int64 tensors on the device."""

    first: Tensor
    """[K-1]: the guess of a sequence that has none before it."""
    near: Tensor
    """[K]: 1 where a token is verified within a tolerance, 0 where it must match exactly."""


class PromptContract(Hashable, Protocol):
    """How the prompts of one model's sequences enter its passes.

    A prompt's segment brings integers and a payload; both lie in the buffer that a pass reads. Segments may be
    padded: rows after the last one are written after it in the slot, where the sequence's next row replaces them.
    """

    @property
    def network(self) -> TokenNetwork: ...

    @property
    def drafting(self) -> Drafting | None:
        """How drafts after a prompt begin and are verified; None where prompts have none."""
        ...

    @property
    def components(self) -> int:
        """Numbers per RoPE position: 1, or 3 for M-RoPE."""
        ...

    @property
    def keeps_ids(self) -> bool:
        """True where numbers hold the tokens of prompts, as folds and drafts need them (`ids`)."""
        ...

    def count(self, rows: int) -> int:
        """The number of integers that a segment of so many rows brings."""
        ...

    def payload_bytes(self, rows: int) -> int:
        """Size of its payload."""
        ...

    def numbers(self, prompt: Any, rows: int) -> Sequence[int]:
        """The integers of a prompt in a segment of `rows`, at most `count(rows)`; zeros follow."""
        ...

    def payload(self, prompt: Any) -> Tensor:
        """The payload, on the host or on the device, at most `payload_bytes(rows)` long."""
        ...

    def prompt_rows(self, rows: Sequence[int], numbers: Sequence[Tensor], payload: Tensor) -> list[Tensor]:
        """The rows of each segment [n, W], as the network takes them, without reading anything on the host. payload:
        those of all segments, as bytes.
        """
        ...

    def ids(self, rows: Sequence[int], numbers: Sequence[Tensor]) -> list[Tensor]:
        """The token of each row of each segment, and the one after the last; where `keeps_ids`."""
        ...

    def positions(self, rows: Sequence[int], numbers: Sequence[Tensor]) -> tuple[Tensor, Tensor] | None:
        """RoPE positions of all segments [C, rows], and the shift of each after its prompt; None where C is 1."""
        ...


CONTINUES = -1
GUESSLESS = SlotPosition(-1, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PassInputs:
    """Views of one buffer of bytes on the device, all int64 but the payload, and the layout of the pass's rows."""

    slots: Tensor
    """[N]: the slot of each segment."""
    starts: Tensor
    """[N]: where rows enter the slot; CONTINUES stands for the slot's length."""
    rows: Tensor
    """[N]: rows of each segment, without padding."""
    row_segment: Tensor
    """[L_Q]: the segment of each row; empty where every segment is one row."""
    row_offset: Tensor
    """[L_Q]: the place of each row in its segment; empty as above."""
    owner: Tensor
    """[n]: the segment of each sampled row; empty where they are one of each segment."""
    spread: Tensor
    """[S, R]: where a segment samples several rows, its rows among the sampled ones, the last repeated."""
    drafts: Tensor
    """Which of the sampled rows are drafts after a prompt."""
    counts: Tensor
    """[S]: rows in `spread`, without padding."""
    tolerance: Tensor
    """[N]: the tolerance of each segment, where a segment samples several rows."""
    guesses: Tensor
    """[P, 3]: where prompts have drafts, the slot and position at which each is read, and the rows of the prompt;
    the slot of GUESSLESS for the first one.
    """
    moves: Tensor
    """[M, 3]: source, target and length of each copy between slots."""
    numbers: tuple[Tensor, ...]
    """The integers of each prefill (`PromptContract.numbers`)."""
    payload: Tensor
    """Bytes: the payloads of all prefills."""
    layout: PackedLayout
    """The layout of the rows. The pass itself writes its tensors: only the device knows where each slot ends."""

    @classmethod
    def over(
        cls,
        buffer: Tensor,
        shape: PassShape,
        contract: PromptContract,
        places: tuple[Span, ...] | None = None,
        *,
        folding: bool = False,
    ) -> PassInputs:
        """The views of a buffer of `input_bytes`. places: the spans, where the host may branch on them. folding: rows
        may be rotated by other positions than their places.
        """
        sections = _sections_of(shape, contract)
        integers = buffer[: 8 * sections.total].view(torch.long)
        empty = integers[:0]
        views = {name: integers[part] if part.stop > part.start else empty for name, part in sections.parts.items()}
        numbers = tuple(views.pop(name) for name in sections.prefills)
        sampled = views.pop("sampled")
        if len(views["counts"]):
            views["spread"] = views["spread"].view(len(views["counts"]), -1)
        for name in ("guesses", "moves"):
            if len(views[name]):
                views[name] = views[name].view(-1, 3)
        length = sum(shape.lengths)
        single = shape.all_single
        # Rows are rotated by their places in the slot, unless their positions differ: then these have their own tensor.
        rotated_apart = folding or contract.components > 1 or shape.tree
        row_position = integers.new_empty(length)
        layout = PackedLayout(
            lengths=shape.lengths,
            reach=shape.reach,
            row_slot=views["slots"] if single else integers.new_empty(length),
            row_position=row_position,
            rope_position=integers.new_empty(contract.components, length) if rotated_apart else row_position[None],
            sampled_rows=sampled,
            samples=shape.samples,
            places=places,
            # Rows pad a segment only in passes of a padded shape, which have no spans on the host.
            live=None if single or places is not None else integers.new_empty(length, dtype=torch.bool),
            visibility=Visibility(
                integers.new_empty(length, 2, 2), integers.new_empty(length), integers.new_empty(length)
            )
            if shape.tree
            else None,
            gated=shape.gated,
        )
        payload = buffer[8 * sections.total :] if shape.prefills else empty
        return cls(**views, numbers=numbers, payload=payload, layout=layout)


def input_bytes(shape: PassShape, contract: PromptContract) -> int:
    """The size of the buffer that PassInputs views."""
    return 8 * _sections_of(shape, contract).total + sum(map(contract.payload_bytes, shape.prefills))


def harmless(shape: PassShape, contract: PromptContract, slot: int) -> list[int]:
    """The integers of a pass whose segments all lie at the start of one slot."""
    lines = zip(shape.lengths, shape.samples, strict=True)
    return _filled(shape, contract, [_at_start(slot, *line) for line in lines], [Move(slot, slot, 0)] * shape.moves)


def stage(
    planned: Pass[Any],
    prompts: Mapping[Any, Any],
    shape: PassShape,
    contract: PromptContract,
    *,
    scratch: int,
) -> list[Tensor]:
    """A pass's inputs in pieces, bytes that lie end to end on the device: integers, then each prompt's payload.

    scratch: the slot of segments that only pad the pass.
    """
    segments = [*planned.segments, *[_at_start(scratch, 1, 1)] * (shape.segments - len(planned.segments))]
    moves = [*planned.moves, *[Move(scratch, scratch, 0)] * (shape.moves - len(planned.moves))]
    given = [prompts[segment.sequence] for segment in planned.prefills]
    numbers = [contract.numbers(prompt, rows) for prompt, rows in zip(given, shape.prefills, strict=True)]
    whole = torch.tensor(_filled(shape, contract, segments, moves, numbers))
    pieces = [whole.view(torch.uint8)]
    for prompt, rows in zip(given, shape.prefills, strict=True):
        payload = contract.payload(prompt).reshape(-1).view(torch.uint8)
        missing = contract.payload_bytes(rows) - len(payload)
        pieces += [payload, payload.new_zeros(missing)] if missing else [payload]
    return pieces


def _at_start(slot: int, rows: int, samples: int) -> Segment[Any]:
    """Rows of no sequence."""
    return Segment(sequence=None, slot=slot, start=0, length=rows, stage=0, samples=samples)


def _filled(
    shape: PassShape,
    contract: PromptContract,
    segments: Sequence[Segment[Any]],
    moves: Sequence[Move],
    numbers: Sequence[Sequence[int]] = (),
) -> list[int]:
    """All integers of a pass: those of its shape, and the sections that vary. numbers: zeros where not given."""
    sections = _sections_of(shape, contract)
    sampled: list[int] = []
    for first, each, count in zip(sections.firsts, segments, shape.samples, strict=True):
        from_row = first + each.length - each.samples
        sampled += range(from_row, from_row + count)  # padding follows the rows that are sampled
    varying: dict[str, Sequence[int]] = {
        "slots": [each.slot for each in segments],
        "starts": [CONTINUES if each.stage else each.start for each in segments],
        "rows": [each.length for each in segments],
        "sampled": sampled,
        "moves": [each for move in moves for each in (move.source, move.target, move.length)],
    }
    if shape.most_samples > 1:
        sampling = zip(segments, shape.samples, strict=True)
        varying["counts"] = [each.samples for each, samples in sampling if samples]
        varying["tolerance"] = [each.tolerance_bins for each in segments]
    if shape.drafts:
        prompts = [(each, each.guess or GUESSLESS) for each in segments[: len(shape.prefills)]]
        guesses = ((guess.slot, guess.position, row.length - row.samples + 1) for row, guess in prompts)
        varying["guesses"] = [each for guess in guesses for each in guess]
    whole = list(sections.constants)
    for name, values in (*varying.items(), *zip(sections.prefills, numbers, strict=False)):
        first = sections.parts[name].start
        whole[first : first + len(values)] = values
    return whole


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sections:
    """The sections of a shape's integers, named like the fields of PassInputs, and `sampled`."""

    parts: dict[str, slice]
    """The place of each section."""
    prefills: tuple[str, ...]
    """The names of the sections of prefills, one each."""
    total: int
    """The number of all integers."""
    constants: tuple[int, ...]
    """All integers, with zeros in the sections that vary between passes of the shape."""
    firsts: tuple[int, ...]
    """The first row of each segment."""


def _sections_of(shape: PassShape, contract: PromptContract) -> _Sections:
    return _sections(shape, tuple(map(contract.count, shape.prefills)))


@lru_cache(maxsize=1024)
def _sections(shape: PassShape, counts: tuple[int, ...]) -> _Sections:
    """The table of sections. counts: integers of each prefill. The key holds only numbers, so that no model is kept
    alive.
    """
    lengths, sampled = () if shape.all_single else shape.lengths, sum(shape.samples)
    sampling = [samples for samples in shape.samples if samples] if shape.most_samples > 1 else []
    several, segments = len(sampling), shape.segments
    owner = [] if shape.one_sample_each else [at for at, samples in enumerate(shape.samples) for _ in range(samples)]
    runs = zip(_firsts(sampling), sampling, strict=True)
    of_prompts = zip(_firsts(shape.samples), shape.samples[: len(shape.prefills)], strict=False)
    given = {f"numbers {index}": [0] * count for index, count in enumerate(counts)}
    # Sections that follow from the shape have their values here; the others are zeros, filled in for each pass.
    values = {
        "slots": [0] * segments,
        "starts": [0] * segments,
        "rows": [0] * segments,
        "row_segment": [at for at, length in enumerate(lengths) for _ in range(length)],
        "row_offset": [at for length in lengths for at in range(length)],
        "owner": owner,
        "spread": [first + min(at, count - 1) for first, count in runs for at in range(shape.most_samples)],
        "drafts": [at for first, count in of_prompts for at in range(first + 1, first + count)],
        "counts": [0] * several,
        "sampled": [0] * sampled,
        "moves": [0] * 3 * shape.moves,
        "tolerance": [0] * (segments if several else 0),
        "guesses": [0] * (3 * len(shape.prefills) if shape.drafts else 0),
        **given,
    }
    whole: list[int] = []
    parts = {}
    for name, each in values.items():
        parts[name] = slice(len(whole), len(whole) + len(each))
        whole += [*each, *[0] * (len(each) % 2)]  # Triton compiles again for a pointer not at a multiple of 16 bytes
    firsts = tuple(_firsts(shape.lengths))
    return _Sections(parts=parts, prefills=tuple(given), total=len(whole), constants=tuple(whole), firsts=firsts)


def _firsts(lengths: Sequence[int]) -> list[int]:
    """Where each of several runs begins when they lie end to end."""
    return list(accumulate(lengths, initial=0))[:-1]
