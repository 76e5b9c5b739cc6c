"""From the logits of a pass to one token per row, on the device: penalties, temperature, min-p, top-k, top-p, one draw;
and the results of a pass as lines of integers, one for each segment that samples, for the host to read.

The order is vLLM's. Repetition divides or multiplies the logit of what the prompt or the answer holds; presence and
frequency lower the logit of what the answer holds, once and by count. min-p keeps tokens at least min_p times as
probable as the best; top-k keeps the k best and what equals the k-th; top-p keeps the fewest tokens that hold top_p of
what is left, equal ones by ascending id. Log probabilities are the model's own, before all of this.

A draw depends on the request's seed and the token's place only. Nothing here waits for the device, so that a pass may
be recorded with it.

Lines. Plain segments: [finite, token], and with log probabilities those of the token and its alternatives. Segments
whose drafts are the tokens of an earlier pass (`guessed_lines`): [sound, verified, R tokens]. Segments of sequences
with a drafter (`drafted_lines`): [sound and sizes, verified, found, W tokens, K drafts], and with log probabilities
those of the W tokens. finite: 1 where the logits were. sound: 1 where the logits of verified tokens were finite, plus 2
where all were. Log probabilities are the bits of float64.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import torch
from torch import Tensor

from edgeflow.engine.sampling.draw import Cuts, Rules, draw, shares
from edgeflow.engine.sampling.params import MAX_LOGPROBS, SamplingParams
from edgeflow.kernels.kv.layout import uploaded
from edgeflow.kernels.row_operators import Greedy
from edgeflow.scheduler.plan import DraftForm, Outcome, Ref, Segment


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingKind:
    """Needs of the rows of a pass; a part of the pass's shape. A row has the same token in every kind that covers
    it.
    """

    drawn: bool = False
    """True when some row has a temperature above 0."""
    rules: Rules = field(default_factory=Rules)
    """The cuts of those rows; top_k is a power of two."""
    penalised: bool = False
    """True when some row has a penalty."""
    logprobs: bool = False
    """True when some row returns log probabilities."""

    @classmethod
    def of(cls, params: Iterable[SamplingParams]) -> SamplingKind:
        """The least kind that covers rows with these parameters."""
        params = list(params)
        drawn = [row for row in params if row.temperature > 0]
        top_k = max((row.top_k for row in drawn), default=0)
        return cls(
            drawn=bool(drawn),
            rules=Rules(
                min_p=any(row.min_p > 0 for row in drawn),
                top_k=1 << (top_k - 1).bit_length() if top_k else 0,
                all_top_k=bool(drawn) and all(row.top_k for row in drawn),
                top_p=any(row.top_p < 1 for row in drawn),
            ),
            penalised=any(row.penalised for row in params),
            logprobs=any(row.logprobs is not None for row in params),
        )

    @property
    def greedy(self) -> bool:
        """True when only the largest logit of each row is needed."""
        return not (self.drawn or self.penalised or self.logprobs)


GREEDY = SamplingKind()


@dataclass(frozen=True, slots=True)
class Earlier:
    """Tokens before each row that the state does not count yet: the drafts of a verification.

    tokens [N, A] int64; counted [N, A] bool: which of them come before the row.
    """

    tokens: Tensor
    counted: Tensor

    def counts(self, vocabulary: int) -> Tensor:
        """How often each token comes before each row: [N, V] float32"""
        empty = torch.zeros(len(self.tokens), vocabulary, device=self.tokens.device)
        return empty.scatter_add_(1, self.tokens, self.counted.float())


@dataclass(frozen=True, slots=True)
class SampledRows:
    """ids [N] int64. finite [N] bool: True where the row's logits are finite; negative infinity forbids a token."""

    ids: Tensor
    finite: Tensor
    bits: Tensor | None = None
    """[N, 1 + 2 B] int64: log probabilities and ids (`_log_probabilities`); None where they are not needed."""

    def select(self, rows: Tensor) -> SampledRows:
        """Some rows [n], in this order."""
        bits = None if self.bits is None else self.bits.index_select(0, rows)
        return SampledRows(self.ids.index_select(0, rows), self.finite.index_select(0, rows), bits)


class SamplingState:
    """The parameters, shares and tokens of the request in each slot, all on the device.

    Tokens are drawn at places 0 .. places - 1 of a sequence. The last token of a full slot has its capacity as place.
    """

    def __init__(self, slots: int, places: int, vocabulary: int, device: torch.device) -> None:
        self._vocabulary = vocabulary
        self._params: dict[int, SamplingParams] = {}
        self._kind_of = lru_cache(maxsize=64)(SamplingKind.of)
        self._cuts = torch.zeros(4, slots, 1, dtype=torch.float64, device=device)
        self._penalties = torch.ones(3, slots, 1, device=device)
        self._shares = torch.zeros(slots, places, dtype=torch.float64, device=device)
        self._counts = torch.zeros(slots, vocabulary, device=device)
        self._prompted = torch.zeros(slots, vocabulary, dtype=torch.bool, device=device)
        for slot in range(slots):
            self.begin(slot, SamplingParams(max_tokens=1), (), 0)

    def kind(self, slots: Iterable[int]) -> SamplingKind:
        """The least kind that covers the requests in these slots."""
        return self._kind_of(tuple(self._params[slot] for slot in slots))

    def begin(self, slot: int, params: SamplingParams, prompt_ids: Sequence[int], seed: int) -> None:
        """Put a request in `slot`: one upload, without waiting. seed: any integer; params.seed is not read."""
        if params == self._params.get(slot) and not (params.temperature or params.penalised):
            return  # a greedy request after another one changes nothing
        self._params[slot] = params
        numbers = [*self._row(params), params.repetition_penalty, params.presence_penalty, params.frequency_penalty]
        prompt = prompt_ids if params.penalised else ()
        sent = uploaded(torch.tensor([*numbers, *prompt], dtype=torch.float64), self._cuts.device)
        self._cuts[:, slot, 0] = sent[:4]
        self._penalties[:, slot, 0] = sent[4:7]
        if params.temperature > 0:
            self._shares[slot] = shares(seed, self._shares.shape[1], self._shares.device)
        else:
            self._shares[slot] = 0
        if params.penalised:
            self._counts[slot] = 0
            self._prompted[slot] = False
            self._prompted[slot].index_fill_(0, sent[7:].long(), True)

    def cuts(self, slots: Tensor) -> Cuts:
        """The cuts of these slots [N]."""
        return Cuts(*self._cuts.index_select(1, slots).unbind(0))

    def share(self, slots: Tensor, places: Tensor) -> Tensor:
        """The shares [N, 1] at these places [N] of these slots [N]; 0 in greedy rows."""
        return self._shares[slots, places].unsqueeze(1)

    def penalised(self, scores: Tensor, slots: Tensor, earlier: Earlier | None = None) -> Tensor:
        """Scores [N, V] float32 after the penalties of these slots [N]. earlier: besides the tokens of the state."""
        repetition, presence, frequency = self._penalties.index_select(1, slots).unbind(0)
        counts = self._counts.index_select(0, slots)
        if earlier is not None:
            counts = counts + earlier.counts(self._vocabulary)
        said = counts > 0
        weaker = torch.where(scores > 0, scores / repetition, scores * repetition)
        scores = torch.where(said | self._prompted.index_select(0, slots), weaker, scores)
        return scores - frequency * counts - presence * said

    def remember(self, slots: Tensor, ids: Tensor, verified: Tensor | None = None) -> None:
        """Count tokens of the answers in these slots: [N], [N]. verified [N] bool: which of them; None for all."""
        where = torch.add(ids, slots, alpha=self._vocabulary)
        counted = (
            torch.ones_like(ids, dtype=self._counts.dtype) if verified is None else verified.to(self._counts.dtype)
        )
        self._counts.view(-1).scatter_add_(0, where, counted)

    def _row(self, params: SamplingParams) -> tuple[float, float, float, float]:
        """The numbers of `Cuts`. A greedy row keeps what equals the best."""
        if not params.temperature:
            return math.log(2), -math.inf, 0.0, 0.0
        least = math.log2(params.min_p) if params.min_p else -math.inf
        kept = min(params.top_k or self._vocabulary, self._vocabulary)
        return params.temperature * math.log(2), least, kept - 1, 1 - params.top_p


def sample(
    logits: Tensor,
    state: SamplingState | None,
    slots: Tensor,
    places: Tensor,
    kind: SamplingKind,
    greedy: Greedy,
    allowed: Tensor | None = None,
    earlier: Earlier | None = None,
) -> SampledRows:
    """Choose one token per row of logits [N, V].

    state: None where only greedy tokens are needed; it counts no token before `remember`. slots [N] int64. places
    [N] int64: the position in its sequence of the token that is drawn. greedy: the operator. allowed [N, V] bool: what
    a grammar permits. earlier: as in `SamplingState.penalised`.
    """
    vocabulary = logits.shape[1]
    if kind.greedy and allowed is None:
        return SampledRows(*greedy(logits, 0, vocabulary))
    if state is None:
        raise ValueError("slots without sampling parameters give greedy tokens only")
    own = logits.float()
    scores = state.penalised(own, slots, earlier) if kind.penalised else own
    finite = None
    if allowed is not None:
        finite = scores.amax(-1).isfinite()
        scores = scores.masked_fill(~allowed, -torch.inf)
    if kind.drawn:
        ids, best = draw(scores, state.cuts(slots), kind.rules, state.share(slots, places))
        sound = best.isfinite()
    else:
        ids, sound = greedy(scores, 0, vocabulary)
    finite = sound if finite is None else finite & sound
    return SampledRows(ids, finite, _log_probabilities(own, ids) if kind.logprobs else None)


def _log_probabilities(logits: Tensor, ids: Tensor) -> Tensor:
    """Log probabilities of ids [N], then ids and log probabilities of the B best, 5 of a larger vocabulary, best first:
    [N, 1 + 2 B] int64.
    """
    logprobs = logits.log_softmax(-1)
    best = logprobs.topk(min(MAX_LOGPROBS, logits.shape[1]))
    return bits_of(logprobs.gather(1, ids[:, None]), best.indices, best.values)


def bits_of(logprobs: Tensor, top_ids: Tensor, top_logprobs: Tensor) -> Tensor:
    """Log probabilities [N, 1], and ids and log probabilities of others [N, B], as integers: [N, 1 + 2 B]"""
    values = torch.cat([logprobs, top_logprobs], dim=1).double().view(torch.long)
    return torch.cat([values[:, :1], top_ids, values[:, 1:]], dim=1)


WIDTH, COUNT = 2, 12
"""The bits of a drafted line's first number at which W and K begin; `sound` is below."""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """The log probability of a token, and the likeliest tokens in its place."""

    logprob: float
    top: tuple[tuple[int, float], ...]
    """(id, log probability), best first."""


@dataclass(frozen=True, slots=True)
class Sampled(Outcome[Ref]):
    """An outcome of an executor."""

    guesses: tuple[int, ...] = ()
    """Unverified tokens of the last rows, where an earlier pass made the drafts."""
    guesses_finite: bool = True
    """True where the logits of all rows were finite."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    """Log probabilities of each token; empty where they were not requested."""
    drafts: tuple[int, ...] = ()
    """The chain of drafts after the newest token; empty for trees."""


def plain_lines(rows: SampledRows) -> Tensor:
    """The lines of segments of one sampled row: [N, C]"""
    columns = torch.stack([rows.finite.long(), rows.ids], dim=1)
    return columns if rows.bits is None else torch.cat([columns, rows.bits], dim=1)


def drafted_lines(rows: SampledRows, sound: Tensor, verified: Tensor, found: Tensor, drafts: Tensor) -> Tensor:
    """The lines of S segments. rows: S * W, those of a segment one after the other; sound, verified, found [S]; drafts
    [S, K].
    """
    segments = len(verified)
    tokens, bits = rows.ids.view(segments, -1), rows.bits
    sizes = tokens.shape[1] << WIDTH | drafts.shape[1] << COUNT
    parts = [torch.stack([sound + sizes, verified, found], dim=1), tokens, drafts]
    return torch.cat(parts if bits is None else [*parts, bits.view(segments, -1)], dim=1)


def guessed_lines(rows: SampledRows, spread: Tensor, counts: Tensor, verified: Tensor) -> Tensor:
    """The lines of S segments. spread [S, R]: the rows of each; counts, verified [S, 1]: how many of them are sampled,
    and verified.
    """
    at, finite = torch.arange(spread.shape[1], device=spread.device), rows.finite[spread]
    sound = (finite | (at >= verified)).all(1, keepdim=True) + 2 * (finite | (at >= counts)).all(1, keepdim=True)
    return torch.cat([sound, verified, rows.ids[spread]], dim=1)


def read_outcome(segment: Segment[Ref], line: list[int], *, guessed: bool) -> Sampled[Ref]:
    """The outcome of a segment that samples. guessed: its pass has drafts that an earlier pass gave."""
    sequence, finite = segment.sequence, bool(line[0] & 1)
    if segment.form is not DraftForm.NONE:
        return _drafted(segment, line)
    if guessed:
        verified, tokens = line[1], tuple(line[2 : 2 + segment.samples])
        guesses = tokens[verified:]
        return Sampled(sequence, tokens[:verified], finite, guesses=guesses, guesses_finite=bool(line[0] & 2))
    return Sampled(sequence, (line[1],), finite, logprobs=tuple(_logprobs(line[2:], 1)))


def _drafted(segment: Segment[Ref], line: list[int]) -> Sampled[Ref]:
    (sizes, verified, found), rest = line[:3], line[3:]
    sound, width, count = sizes & 3, sizes >> WIDTH & 0x3FF, sizes >> COUNT
    tokens, drafts, bits = rest[:width], rest[width : width + count], rest[width + count :]
    return Sampled(
        segment.sequence,
        tuple(tokens[:verified]),
        bool(sound & 1),
        found=found,
        logprobs=tuple(_logprobs(bits, width)[:verified]),
        drafts=tuple(drafts[:found]),
    )


def _logprobs(bits: Sequence[int], tokens: int) -> list[TokenLogprobs]:
    """The log probabilities of so many tokens, as `bits_of` has them."""
    width = len(bits) // tokens
    return [_of_token(bits[first : first + width]) for first in range(0, len(bits), width)] if width else []


def _of_token(bits: Sequence[int]) -> TokenLogprobs:
    best = len(bits) // 2
    longs = bits[0], *bits[1 + best :]
    logprob, *others = struct.unpack(f"<{len(longs)}d", struct.pack(f"<{len(longs)}q", *longs))
    return TokenLogprobs(logprob, tuple(zip(bits[1 : 1 + best], others, strict=True)))
