"""The results of a pass as lines of whole numbers, one for each segment that samples: written on the device, read on
the host once the pass is done.

Plain segments: [finite, token], and with log probabilities those of the token and its alternatives. Segments whose
drafts are the tokens of an earlier pass (`guessed_lines`): [sound, settled, R tokens]. Segments of sequences with a
drafter (`drafted_lines`): [sound and sizes, settled, found, W tokens, K drafts], and with log probabilities those of
the W tokens.

finite: 1 where the logits were. sound: 1 where those behind settled tokens were finite, plus 2 where all were. Log
probabilities are the bits of float64.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from edgeflow.engine.sampling.sample import SampledRows
from edgeflow.scheduler.plan import DraftForm, Outcome, Ref, Segment

WIDTH, COUNT = 2, 12
"""The bits of a drafted line's first number at which W and K begin; `sound` is below."""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """The log probability of a token, and the likeliest tokens in its place. top: (id, log probability), best first."""

    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Sampled(Outcome[Ref]):
    """An outcome of an executor. logprobs: those of each token, empty where they were not asked for. drafts: the chain
    that stands behind the newest token, if it is one. guesses: tokens of rows that are not settled, where an earlier
    pass made the drafts; guesses_finite: whether the logits of all rows were finite.
    """

    guesses: tuple[int, ...] = ()
    guesses_finite: bool = True
    logprobs: tuple[TokenLogprobs, ...] = ()
    drafts: tuple[int, ...] = ()


def plain_lines(rows: SampledRows) -> Tensor:
    """The lines of segments of one sampled row: [N, C]"""
    columns = torch.stack([rows.finite.long(), rows.ids], dim=1)
    bits = _bits(rows)
    return columns if bits is None else torch.cat([columns, bits], dim=1)


def drafted_lines(rows: SampledRows, sound: Tensor, settled: Tensor, found: Tensor, drafts: Tensor) -> Tensor:
    """The lines of S segments. rows: S * W, those of a segment one after the other; sound, settled, found [S]; drafts
    [S, K].
    """
    segments = len(settled)
    tokens, bits = rows.ids.view(segments, -1), _bits(rows)
    sizes = tokens.shape[1] << WIDTH | drafts.shape[1] << COUNT
    parts = [torch.stack([sound + sizes, settled, found], dim=1), tokens, drafts]
    return torch.cat(parts if bits is None else [*parts, bits.view(segments, -1)], dim=1)


def guessed_lines(rows: SampledRows, spread: Tensor, counts: Tensor, settled: Tensor) -> Tensor:
    """The lines of S segments. spread [S, R]: the rows of each; counts, settled [S, 1]: how many of them are sampled,
    and settled.
    """
    at, finite = torch.arange(spread.shape[1], device=spread.device), rows.finite[spread]
    sound = (finite | (at >= settled)).all(1, keepdim=True) + 2 * (finite | (at >= counts)).all(1, keepdim=True)
    return torch.cat([sound, settled, rows.ids[spread]], dim=1)


def read_outcome(segment: Segment[Ref], line: list[int], *, guessed: bool) -> Sampled[Ref]:
    """The outcome of a segment that samples. guessed: its pass has drafts that an earlier pass gave."""
    sequence, finite = segment.sequence, bool(line[0] & 1)
    if segment.form is not DraftForm.NONE:
        return _drafted(segment, line)
    if guessed:
        settled, tokens = line[1], tuple(line[2 : 2 + segment.samples])
        guesses = tokens[settled:]
        return Sampled(sequence, tokens[:settled], finite, guesses=guesses, guesses_finite=bool(line[0] & 2))
    return Sampled(sequence, (line[1],), finite, logprobs=tuple(_logprobs(line[2:], 1)))


def _drafted(segment: Segment[Ref], line: list[int]) -> Sampled[Ref]:
    (sizes, settled, found), rest = line[:3], line[3:]
    sound, width, count = sizes & 3, sizes >> WIDTH & 0x3FF, sizes >> COUNT
    tokens, drafts, bits = rest[:width], rest[width : width + count], rest[width + count :]
    return Sampled(
        segment.sequence,
        tuple(tokens[:settled]),
        bool(sound & 1),
        found=found,
        logprobs=tuple(_logprobs(bits, width)[:settled]),
        drafts=tuple(drafts[:found]),
    )


def _bits(rows: SampledRows) -> Tensor | None:
    """Log probabilities and ids of each row: [N, 1 + 2 B] int64; None where there are none."""
    if rows.logprob is None or rows.top_ids is None or rows.top_logprobs is None:
        return None
    logprobs = torch.cat([rows.logprob[:, None], rows.top_logprobs], dim=1).double().view(torch.long)
    return torch.cat([logprobs[:, :1], rows.top_ids, logprobs[:, 1:]], dim=1)


def _logprobs(bits: Sequence[int], tokens: int) -> list[TokenLogprobs]:
    """The log probabilities of so many tokens, as `_bits` has them."""
    width = len(bits) // tokens
    return [_of_token(bits[first : first + width]) for first in range(0, len(bits), width)] if width else []


def _of_token(bits: Sequence[int]) -> TokenLogprobs:
    best = len(bits) // 2
    logprob, *others = map(_float, (bits[0], *bits[1 + best :]))
    return TokenLogprobs(logprob, tuple(zip(bits[1 : 1 + best], others, strict=True)))


def _float(bits: int) -> float:
    value: float = struct.unpack("<d", struct.pack("<q", bits))[0]
    return value
