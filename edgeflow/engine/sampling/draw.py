"""One draw per row of scores: the cuts by rank, then the token on which a share of what is left falls.

Tokens are ranked by descending score, equal ones by ascending id. min-p, top-k and top-p each keep a beginning of this
list, and a share of the mass that is kept falls on one token of it; a share of 0 falls on the first. Weights are
integers: exp((score - best) / temperature) in float64, rounded down to a multiple of 1 / `unit`. Their sums are exact
in any order, so a row's token depends neither on the rows beside it nor on how a device divides a sum.

Short rows are sorted. Of long rows the best are, where top-k cuts them all; else histograms over the bits of the scores
are searched. All three find the same token. No size depends on data, and nothing waits for the device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

LONGEST_SORTED = 4096
"""Rows of at most so many scores are sorted."""
SHARE_BITS = 50
"""Bits of a share; with fewer than 52, no rounding takes share * mass up to the mass itself."""
GAMMA = -0x61C8864680B583EB
MIXERS = ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15))
"""The constants of splitmix64, as signed integers."""
BINS = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The cuts that some row makes."""

    min_p: bool = False
    top_k: int = 0
    """The most tokens that a row keeps by top-k, equal ones aside; 0 without top-k."""
    all_top_k: bool = False
    """True when every row has a top-k."""
    top_p: bool = False


class Cuts(NamedTuple):
    """Parameters of the rows, [N, 1] float64 each."""

    scale: Tensor
    """temperature * ln 2."""
    least: Tensor
    """log2 of min_p: the least score relative to the best."""
    last: Tensor
    """The rank, from 0, of the last token of top-k."""
    rest: Tensor
    """1 - top_p: the share that top-p cuts off."""


def unit(vocabulary: int) -> int:
    """The weight of the best token: the largest power of two for which no sum of weights exceeds 2^62."""
    return 1 << (62 - (vocabulary - 1).bit_length())


def shares(seed: int, count: int, device: torch.device) -> Tensor:
    """Uniform numbers in [0, 1) of the places 0 .. count: [count] float64. Each depends on seed and place only."""
    bits = torch.arange(count, device=device).mul_(GAMMA).add_(_mixed(seed))
    for shift, factor in MIXERS:
        bits = (bits >> shift).bitwise_and_((1 << (64 - shift)) - 1).bitwise_xor_(bits).mul_(factor)
    return (bits >> (64 - SHARE_BITS)).bitwise_and_((1 << SHARE_BITS) - 1).double().mul_(2.0**-SHARE_BITS)


def _mixed(seed: int) -> int:
    """splitmix64's output function of a seed, as a signed integer: seeds that are close give unlike shares."""
    value = seed % (1 << 64)
    for shift, factor in MIXERS:
        value = (value ^ value >> shift) * factor % (1 << 64)
    value ^= value >> 31
    return value - (value >> 63 << 64)


def draw(scores: Tensor, cuts: Cuts, rules: Rules, share: Tensor) -> tuple[Tensor, Tensor]:
    """scores [N, V] float32, contiguous; share [N, 1] float64 → ids [N], the best scores [N].

    Where the best score is not finite, the id is any.
    """
    if scores.shape[1] <= LONGEST_SORTED:
        ids, best = by_sorting(scores, cuts, rules, share)
    else:
        find = by_top_k if rules.all_top_k else by_histogram
        together = 1 if scores.is_cpu else len(scores)  # on a CPU, what one row needs stays in the cache
        rows = zip(*(torch.split(part, together) for part in (scores, share, *cuts)), strict=True)
        found = [find(row, Cuts(*row_cuts), rules, row_share) for row, row_share, *row_cuts in rows]
        ids, best = (torch.cat(parts) for parts in zip(*found, strict=True))
    return ids[:, 0], best[:, 0]


def by_sorting(scores: Tensor, cuts: Cuts, rules: Rules, share: Tensor) -> tuple[Tensor, Tensor]:
    """As `draw`: [N, 1], [N, 1]."""
    most = scores.shape[1] - 1
    values, ids = torch.sort(scores, dim=-1, descending=True, stable=True)
    values = values.double()
    best = values[:, :1]
    warm = (values - best).div_(cuts.scale)
    if rules.top_k:
        warm.masked_fill_(values < values.gather(1, cuts.last.long()), -torch.inf)
    sums = _weights(warm, cuts, rules, most + 1).cumsum(-1)
    mass = sums[:, -1:]
    if rules.top_p:
        edge = torch.searchsorted(sums, _nucleus(mass, cuts))
        mass = sums.gather(1, edge.clamp_(max=most))
    rank = torch.searchsorted(sums, (mass * share).long(), right=True)
    return ids.gather(1, rank.clamp_(max=most)), best


def by_top_k(scores: Tensor, cuts: Cuts, rules: Rules, share: Tensor) -> tuple[Tensor, Tensor]:
    """As `draw`, where rules.all_top_k: [N, 1], [N, 1]. Scores equal to the k-th are counted apart, as there may be
    many.
    """
    vocabulary = scores.shape[1]
    values, ids = _best(scores, min(rules.top_k, vocabulary))
    best = values[:, :1].double()
    last = cuts.last.long()
    worst = values.gather(1, last)
    ranks = (scores == worst).cumsum(-1, dtype=torch.int32)
    weights = _weights(values.double().sub_(best).div_(cuts.scale), cuts, rules, vocabulary)
    each = weights.gather(1, last)
    sums = weights.masked_fill_(values <= worst, 0).cumsum(-1)
    above = sums[:, -1:]
    mass = above + each * ranks[:, -1:]
    each.clamp_(min=1)
    if rules.top_p:
        target = _nucleus(mass, cuts)
        edge = sums.gather(1, torch.searchsorted(sums, target).clamp_(max=values.shape[1] - 1))
        mass = torch.where(target > above, _whole(target, above, each), edge)
    target = (mass * share).long()
    better = ids.gather(1, torch.searchsorted(sums, target, right=True).clamp_(max=values.shape[1] - 1))
    equal = torch.searchsorted(ranks, ((target - above) // each).int(), right=True).clamp_(max=vocabulary - 1)
    return torch.where(target < above, better, equal), best


def by_histogram(scores: Tensor, cuts: Cuts, rules: Rules, share: Tensor) -> tuple[Tensor, Tensor]:
    """As `draw`: [N, 1], [N, 1]."""
    most = scores.shape[1] - 1
    best = scores.amax(-1, keepdim=True).double()
    warm = scores.double().sub_(best).div_(cuts.scale)
    if rules.top_k:
        top = scores.topk(min(rules.top_k, scores.shape[1])).values
        worst = top.gather(1, cuts.last.clamp(max=top.shape[1] - 1).long())
        warm.masked_fill_(scores < worst.masked_fill_(cuts.last >= top.shape[1], -torch.inf), -torch.inf)
    search = _Search(scores, _weights(warm, cuts, rules, most + 1))
    mass = search.mass
    if rules.top_p:
        target = _nucleus(mass, cuts)
        above, each, _ = search.score_at((target - 1).clamp_(min=0))
        mass = _whole(target, above, each)
    target = (mass * share).long()
    above, each, ranks = search.score_at(target)
    order = ((target - above) // each).int()
    return torch.searchsorted(ranks, order, right=True).clamp_(max=most), best


def _best(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The best scores in rank order and their ids: [N, count]."""
    top = scores.topk(count)
    ids, order = top.indices.sort()
    values, order = torch.sort(top.values.gather(1, order), dim=-1, descending=True, stable=True)
    return values, ids.gather(1, order)


def _weights(warm: Tensor, cuts: Cuts, rules: Rules, vocabulary: int) -> Tensor:
    """Weights [N, K] int64 of warm scores, which are overwritten: 0 where min-p cuts.

    2^-64 and less are 0 in units of any vocabulary.
    """
    if rules.min_p:
        warm.masked_fill_(warm < cuts.least, -torch.inf)
    return warm.clamp_(min=-64).exp2_().mul_(unit(vocabulary)).long()


def _nucleus(mass: Tensor, cuts: Cuts) -> Tensor:
    """The least mass that top-p keeps: all of it where it cuts nothing."""
    return mass - (mass * cuts.rest).long()


def _whole(target: Tensor, above: Tensor, each: Tensor) -> Tensor:
    """The mass up to and with the token that reaches `target`, of tokens that weigh `each` and begin at `above`."""
    return above - each * ((above - target) // each)


class _Search:
    """Finds the score at which the mass of better tokens passes a limit: by 16 bits of the scores, then by 16 more.

    scores [N, V] float32; weights [N, V] int64, equal for equal scores. mass [N, 1]: the sum of the weights.
    """

    def __init__(self, scores: Tensor, weights: Tensor) -> None:
        self._keys = _keys(scores)
        self._weights = weights
        self._sums = self._histogram((self._keys >> 16).add_(BINS // 2), BINS).cumsum(-1)
        self.mass = self._sums[:, -1:]

    def score_at(self, mass: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The tokens of the score on which `mass` [N, 1] falls.

        Returns the mass above them, the weight of each of them, and how many they are up to each id [N, V] int32.
        """
        bins = torch.searchsorted(self._sums, mass, right=True).clamp_(max=BINS - 1)
        before = ((bins - BINS // 2) << 16) - 1
        inside = self._histogram((self._keys - before).clamp_(0, BINS + 1), BINS + 2)
        sums = inside.cumsum(-1)
        place = torch.searchsorted(sums, mass, right=True).clamp_(1, BINS)
        ranks = (self._keys == before + place).cumsum(-1, dtype=torch.int32)
        each = inside.gather(1, place) // ranks[:, -1:].clamp(min=1)
        return sums.gather(1, place - 1), each.clamp_(min=1), ranks

    def _histogram(self, bins: Tensor, count: int) -> Tensor:
        empty = torch.zeros(len(bins), count, dtype=torch.long, device=bins.device)
        return empty.scatter_add_(1, bins, self._weights)


def _keys(scores: Tensor) -> Tensor:
    """Integers of 32 bits in the reverse order of the scores, equal for equal ones: [N, V] float32 → int64."""
    bits = scores.view(torch.int32)
    negative = bits >> 31
    return (negative & 0x7FFFFFFF).bitwise_xor_(bits).sub_(negative).neg_().long()
