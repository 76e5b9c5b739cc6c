"""Draws from long and short rows against a twin of plain integers, and their shares against a twin of splitmix64."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from edgeflow.engine.sampling.draw import Cuts, Rules, by_histogram, by_sorting, by_top_k, draw, shares, unit
from edgeflow.engine.sampling.params import SamplingParams

CPU = torch.device("cpu")
EVERY = Rules(min_p=True, top_k=1 << 20, top_p=True)
WAYS = {"sorting": by_sorting, "histogram": by_histogram, "top_k": by_top_k}


def probabilities(scores: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """Weights: [V] → [V] float64, 0 where a token must not be drawn. Not for temperature 0."""
    scores = scores.double() / params.temperature
    if params.min_p:
        scores = scores.masked_fill(scores < scores.max() + math.log(params.min_p), -math.inf)
    if 0 < params.top_k < len(scores):
        scores = scores.masked_fill(scores < scores.topk(params.top_k).values[-1], -math.inf)
    left = scores.softmax(-1)
    return _nucleus(left, params.top_p) if params.top_p < 1 else left


def _nucleus(left: torch.Tensor, top_p: float) -> torch.Tensor:
    by_weight = left.sort(descending=True, stable=True)
    before = by_weight.values.cumsum(-1) - by_weight.values
    chosen = by_weight.indices[before < top_p]
    return torch.zeros_like(left).index_copy_(0, chosen, left[chosen])


def cuts_of(params: SamplingParams, vocabulary: int, rows: int = 1) -> Cuts:
    last = min(params.top_k or vocabulary, vocabulary) - 1
    least = math.log2(params.min_p) if params.min_p else -math.inf
    numbers = (params.temperature * math.log(2), least, last, 1 - params.top_p)
    return Cuts(*(torch.full((rows, 1), number, dtype=torch.float64) for number in numbers))


def twin(scores: torch.Tensor, params: SamplingParams) -> list[tuple[int, int]]:
    """Tokens that may be drawn and their weights, best first: [V] float32 → (id, weight) by Python's own integers."""
    cuts, vocabulary = cuts_of(params, len(scores)), len(scores)
    warm = (scores.double() - scores.max().double()) / cuts.scale[0]
    weights = (warm.clamp(min=-64).exp2() * unit(vocabulary)).long().tolist()
    warm, plain = warm.tolist(), scores.tolist()
    ranked = sorted(range(vocabulary), key=lambda token: (-plain[token], token))
    worst = plain[ranked[min(params.top_k or vocabulary, vocabulary) - 1]]
    ranked = [token for token in ranked if plain[token] >= worst and warm[token] >= cuts.least.item()]
    mass = sum(weights[token] for token in ranked)
    limit = mass - int(float(mass) * (1 - params.top_p))
    kept, held = [], 0
    for token in ranked:
        if kept and held >= limit:
            break
        kept.append((token, weights[token]))
        held += weights[token]
    return kept


def twin_draw(kept: list[tuple[int, int]], share: float) -> int:
    target = int(float(sum(weight for _, weight in kept)) * share)
    for token, weight in kept:
        if target < weight:
            return token
        target -= weight
    raise AssertionError("a share below 1 falls on a token")


def edges(kept: list[tuple[int, int]]) -> list[float]:
    """Shares in the middle of each token's part, and the least and the greatest of all."""
    mass, held, found = sum(weight for _, weight in kept), 0, [0.0, 1 - 2.0**-50]
    for _, weight in kept:
        found += [math.floor((held + weight / 2) / mass * 2**50) / 2**50] if weight > mass >> 45 else []
        held += weight
    return found


@st.composite
def rows(draw_from: st.DrawFn) -> torch.Tensor:
    """Scores [V] float32 with ties, zeros of both signs and forbidden tokens; one at least is finite."""
    vocabulary = draw_from(st.sampled_from([1, 2, 3, 7, 31, 64, 65, 100]))
    values = st.one_of(st.floats(-12, 12, width=32), st.sampled_from([-math.inf, 0.0, -0.0, 1.0, 1.5, -3e38, 1e-40]))
    scores = draw_from(st.lists(values, min_size=vocabulary, max_size=vocabulary))
    scores[draw_from(st.integers(0, vocabulary - 1))] = 1.5
    return torch.tensor(scores)


params_of_any_kind = st.builds(
    SamplingParams,
    max_tokens=st.just(5),
    temperature=st.one_of(st.floats(0.05, 2), st.just(1.0)),
    top_p=st.one_of(st.just(1.0), st.floats(0.05, 1), st.sampled_from([1e-9, 1e-300, 0.5, 0.999999])),
    top_k=st.one_of(st.just(0), st.integers(0, 120), st.just(1)),
    min_p=st.one_of(st.just(0.0), st.floats(0.01, 1), st.just(1.0)),
)


@given(scores=rows(), params=params_of_any_kind, start=st.integers(0, 99))
@example(
    scores=torch.tensor([1.5, 0.0, 1.1755e-38]), params=SamplingParams(max_tokens=5, temperature=1.0, top_k=2), start=0
)
def test_every_way_draws_as_the_twin(scores: torch.Tensor, params: SamplingParams, start: int):
    kept = twin(scores, params)
    found = edges(kept)
    found = found[:2] + found[2 + start % max(len(found) - 2, 1) :][:6]
    cuts = cuts_of(params, len(scores), len(found))
    wanted = [twin_draw(kept, share) for share in found]
    for name, way in WAYS.items():
        rules = EVERY if name != "top_k" or params.top_k else replace(EVERY, top_k=len(scores))
        many = scores.expand(len(found), -1).contiguous()
        ids, best = way(many, cuts, rules, torch.tensor(found, dtype=torch.float64)[:, None])
        assert ids[:, 0].tolist() == wanted, name
        assert best[:, 0].tolist() == [scores.max()] * len(found)


@given(scores=rows(), params=params_of_any_kind)
def test_the_twin_keeps_what_the_probabilities_in_float64_keep(scores: torch.Tensor, params: SamplingParams):
    scores = scores.where(scores.abs() > 1e-30, 0.0)  # else two scores may have one probability
    found = dict(twin(scores, params))
    wanted = probabilities(scores, params)
    mass = sum(found.values())
    differ = [token for token in range(len(scores)) if (found.get(token, 0) > 0) != (wanted[token] > 0)]
    if all(wanted[token] < 2.0**-50 for token in differ):
        for token, weight in found.items():
            assert weight / mass == pytest.approx(float(wanted[token] / wanted.sum()), rel=1e-9, abs=2.0**-50)
        return
    left = probabilities(scores, replace(params, top_p=1.0)).sort(descending=True).values  # a cut between roundings
    near_top_p = (left.cumsum(-1) - params.top_p).abs().min() < 1e-12
    warm = (scores.double() - scores.max()) / params.temperature
    near_min_p = params.min_p and (warm - math.log(params.min_p)).abs().min() < 1e-12
    assert near_top_p or near_min_p


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rules", [{}, {"top_p": 0.95}, {"top_k": 20, "top_p": 0.8}, {"top_k": 5000}, {"min_p": 0.05}])
def test_long_rows_draw_as_sorted_ones(rules: dict[str, float], dtype: torch.dtype):
    generator = torch.Generator().manual_seed(3)
    scores = (torch.randn(6, 50_257, generator=generator) * 3).to(dtype).float()
    params = SamplingParams(max_tokens=1, temperature=0.9, **rules)
    asked = Rules(top_k=8192 if params.top_k else 0, top_p=params.top_p < 1, min_p=params.min_p > 0)
    cuts, share = cuts_of(params, 50_257, 6), torch.rand(6, 1, dtype=torch.float64, generator=generator)
    wanted = by_sorting(scores, cuts, asked, share)[0]
    assert by_histogram(scores, cuts, asked, share)[0].equal(wanted)
    assert draw(scores, cuts, asked, share)[0].equal(wanted[:, 0])
    if params.top_k:
        asked = replace(asked, all_top_k=True)
        assert by_top_k(scores, cuts, asked, share)[0].equal(wanted)
        assert draw(scores, cuts, asked, share)[0].equal(wanted[:, 0])


@pytest.mark.parametrize("way", WAYS)
def test_a_nucleus_that_is_full_takes_no_further_token(way: str):
    scores = torch.tensor([[-1.0, 0.0, -2.0, -2.0]])  # with a scale of 1, weights of 2, 4, 1 and 1
    for rest, wanted in ((0.5, {1}), (0.25, {1, 0}), (0.125, {1, 0, 2}), (0.0, {1, 0, 2, 3})):
        cuts = Cuts(*(torch.full((1, 1), number, dtype=torch.float64) for number in (1.0, -math.inf, 2, rest)))
        share = [torch.tensor([[step / 64]], dtype=torch.float64) for step in range(64)]
        assert {int(WAYS[way](scores, cuts, EVERY, each)[0]) for each in share} == wanted


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_row_of_nan_yields_some_token_and_does_not_affect_the_others(bad: float, way: str):
    scores = torch.arange(40.0).remainder(7)[None].repeat(3, 1)
    scores[1] = bad
    cuts = cuts_of(SamplingParams(max_tokens=1, temperature=1.0, top_k=30, top_p=0.7, min_p=0.1), 40, 3)
    share = torch.full((3, 1), 0.6, dtype=torch.float64)
    ids, best = WAYS[way](scores, cuts, EVERY, share)
    alone, _ = WAYS[way](scores[:1], cuts_of(SamplingParams(max_tokens=1, temperature=1.0, top_k=30, top_p=0.7,
                         min_p=0.1), 40), EVERY, share[:1])  # fmt: skip
    assert ids[0] == ids[2] == alone[0] and 0 <= ids[1] < 40
    assert best.isfinite()[:, 0].tolist() == [True, False, True]


def splitmix64(state: int) -> int:
    """The published output function."""
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB % 2**64
    return state ^ (state >> 31)


@given(seed=st.integers(-(2**70), 2**70))
def test_shares_are_those_of_splitmix64(seed: int):
    key = splitmix64(seed % 2**64)
    wanted = []
    for place in range(5):
        state = (key + place * 0x9E3779B97F4A7C15) % 2**64
        state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        state = (state ^ (state >> 27)) * 0x94D049BB133111EB % 2**64  # the last step changes low bits only
        wanted.append((state >> 14) / 2**50)
    assert shares(seed, 5, CPU).tolist() == wanted


def test_the_twin_of_splitmix64_gives_the_published_numbers():
    first = [splitmix64(1234567 + (place + 1) * 0x9E3779B97F4A7C15 & 2**64 - 1) for place in range(3)]
    assert first == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_shares_are_uniform_and_unlike_for_near_seeds_and_places():
    table = torch.stack([shares(seed, 1000, CPU) for seed in range(100)])
    assert table.min() >= 0 and table.max() < 1 and table.unique().numel() == table.numel()
    counts = torch.histc(table, 64, 0, 1)
    assert float(((counts - 1562.5) ** 2 / 1562.5).sum()) < 63 + 4 * math.sqrt(2 * 63)  # chi-square, 4 sigma
    for one, other in ((table[:, 1:], table[:, :-1]), (table[1:], table[:-1])):
        pairs = torch.stack([one.flatten(), other.flatten()])
        assert abs(float(torch.corrcoef(pairs)[0, 1])) < 4 / math.sqrt(pairs.shape[1])


@pytest.mark.parametrize("way", WAYS)
def test_draws_follow_the_weights(way: str):
    scores = torch.tensor([0.0, 1.0, 2.0, -1.0, 1.0, 0.3])
    params, count = SamplingParams(max_tokens=1, temperature=0.8, top_k=5), 4_000
    counts: Counter[int] = Counter()
    for share in shares(11, count, CPU)[:, None].split(8):
        ids, _ = WAYS[way](scores.repeat(8, 1), cuts_of(params, 6, 8), EVERY, share)
        counts.update(ids[:, 0].tolist())
    wanted = (probabilities(scores, params) * count).tolist()
    assert counts[3] == 0 == wanted[3]
    chi_square = sum((counts[token] - mean) ** 2 / mean for token, mean in enumerate(wanted) if mean)
    assert chi_square < 4 + 4 * math.sqrt(2 * 4)  # 4 degrees of freedom, 4 sigma
