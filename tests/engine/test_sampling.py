"""Sampling against a twin of plain loops, and what it promises."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from edgeflow.engine.sampling import Sampler, draw, probabilities
from edgeflow.engine.sampling.params import SamplingParams
from edgeflow.errors import WorkerError

CPU = torch.device("cpu")
VOCAB = 12
logits_lists = st.lists(st.floats(-6, 6, width=32), min_size=VOCAB, max_size=VOCAB)


def twin_penalised(logits: list[float], prompt: list[int], said: list[int], params: SamplingParams) -> list[float]:
    scores = list(logits)
    for token in range(len(scores)):
        if token in prompt or token in said:
            penalty = params.repetition_penalty
            scores[token] = scores[token] / penalty if scores[token] > 0 else scores[token] * penalty
        scores[token] -= params.frequency_penalty * said.count(token)
        scores[token] -= params.presence_penalty * (token in said)
    return scores


def twin_probabilities(scores: list[float], params: SamplingParams) -> list[float]:
    """Ranked list, cut by each rule in turn, what is left shared anew."""
    warm = [score / params.temperature for score in scores]
    ranked = sorted(range(len(warm)), key=lambda token: (-warm[token], token))
    if params.min_p:
        ranked = [token for token in ranked if warm[token] >= warm[ranked[0]] + math.log(params.min_p)]
    if params.top_k:
        last = warm[ranked[: params.top_k][-1]]
        ranked = [token for token in ranked if warm[token] >= last]
    total = sum(math.exp(warm[token] - warm[ranked[0]]) for token in ranked)
    shares = {token: math.exp(warm[token] - warm[ranked[0]]) / total for token in ranked}
    kept, held = [], 0.0
    for token in ranked:
        if params.top_p < 1 and held >= params.top_p:
            break
        kept.append(token)
        held += shares[token]
    return [shares[token] if token in kept else 0.0 for token in range(len(scores))]


def twin_draw(weights: list[float], share: float) -> int:
    target, passed = share * sum(weights), 0.0
    for token, weight in enumerate(weights):
        passed += weight
        if passed > target:
            return token
    raise AssertionError("a share below 1 falls somewhere")


params_of_any_kind = st.builds(
    SamplingParams,
    max_tokens=st.just(5),
    temperature=st.floats(0.05, 2),
    top_p=st.one_of(st.just(1.0), st.floats(0.05, 1)),
    top_k=st.integers(0, VOCAB + 2),
    min_p=st.one_of(st.just(0.0), st.floats(0.01, 1)),
    repetition_penalty=st.floats(0.5, 2),
    presence_penalty=st.floats(-2, 2),
    frequency_penalty=st.floats(-2, 2),
    seed=st.integers(0, 9),
)


@given(logits=logits_lists, params=params_of_any_kind)
def test_probabilities_equal_the_twin(logits: list[float], params: SamplingParams):
    found = probabilities(torch.tensor(logits), params).tolist()
    wanted = twin_probabilities(torch.tensor(logits).tolist(), params)
    cut = {token for token in range(VOCAB) if (found[token] > 0) != (wanted[token] > 0)}
    if cut:  # only a token at the very edge of a cut may fall on either side of it
        edges = [sum(sorted(wanted, reverse=True)[:n]) for n in range(VOCAB)]
        assert min(abs(edge - params.top_p) for edge in edges) < 1e-9 or len(set(logits)) < VOCAB
        return
    assert found == pytest.approx(wanted, abs=1e-9)


@given(logits=st.lists(logits_lists, min_size=1, max_size=4), prompt=st.lists(st.integers(0, VOCAB - 1), max_size=4))
@pytest.mark.parametrize(
    "rules",
    [
        {"repetition_penalty": 1.3},
        {"presence_penalty": 0.7, "frequency_penalty": -0.4},
        {"repetition_penalty": 0.8, "frequency_penalty": 1.1, "temperature": 0.9, "top_k": 5},
    ],
    ids=str,
)
def test_penalties_equal_the_twin(rules: dict[str, float], logits: list[list[float]], prompt: list[int]):
    params = SamplingParams(max_tokens=4, seed=3, **rules)
    sampler, twin_random, said = Sampler(params, prompt, VOCAB, CPU), random.Random(3), []
    for row in logits:
        scores = twin_penalised(torch.tensor(row).tolist(), prompt, said, params)
        found = sampler.sample(torch.tensor(row)).token
        if params.temperature == 0:
            assert scores[found] == pytest.approx(max(scores), abs=1e-5)
        else:
            shares = twin_probabilities(scores, params)
            wanted = twin_draw(shares, share := twin_random.random())
            near = [twin_draw(shares, min(max(share + step, 0), 0.999999)) for step in (-1e-5, 1e-5)]
            assert found in (wanted, *near) or min(abs(a - b) for a in scores for b in scores if a is not b) < 1e-5
        said.append(found)


@given(weights=st.lists(st.floats(0, 1), min_size=1, max_size=9).filter(any), share=st.floats(0, 1, exclude_max=True))
def test_a_draw_falls_on_what_may_be_drawn(weights: list[float], share: float):
    found = draw(torch.tensor(weights, dtype=torch.float64), share)
    assert weights[found] > 0
    low, high = sum(weights[:found]), sum(weights[: found + 1])
    assert low - 1e-9 <= share * sum(weights) <= high + 1e-9


def test_draws_follow_the_probabilities():
    logits = torch.tensor([0.0, 1.0, 2.0, -1.0])
    sampler = Sampler(SamplingParams(max_tokens=1, temperature=1.0, seed=0), [], 4, CPU)
    counts = Counter(sampler.sample(logits).token for _ in range(4000))
    for token, share in enumerate(logits.softmax(-1).tolist()):
        assert abs(counts[token] / 4000 - share) < 5 * math.sqrt(share * (1 - share) / 4000)  # 5 sigma


def test_a_seed_repeats_an_answer_and_none_does_not():
    logits = torch.zeros(VOCAB)

    def answer(seed: int | None) -> list[int]:
        sampler = Sampler(SamplingParams(max_tokens=1, temperature=1.0, seed=seed), [], VOCAB, CPU)
        return [sampler.sample(logits).token for _ in range(40)]

    assert answer(7) == answer(7) != answer(8)
    assert answer(None) != answer(None)


def test_log_probabilities_are_the_models_own():
    logits = torch.tensor([1.0, 3.0, 2.0, 0.5])
    params = SamplingParams(max_tokens=1, repetition_penalty=10.0, logprobs=3)
    sampled = Sampler(params, [1], 4, CPU).sample(logits)
    own = logits.log_softmax(-1).tolist()
    assert sampled.token == 2 and sampled.logprob == pytest.approx(own[2])
    assert [token for token, _ in sampled.top] == [1, 2, 0]
    assert [value for _, value in sampled.top] == pytest.approx([own[1], own[2], own[0]])
    none = Sampler(SamplingParams(max_tokens=1, logprobs=0), [], 4, CPU).sample(logits)
    assert none.top == () and none.logprob == pytest.approx(own[1])


def test_the_nucleus_of_a_large_vocabulary_is_found_without_sorting_it():
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(50_000, generator=generator) * 3
    params = SamplingParams(max_tokens=1, temperature=1.0, top_p=0.9)
    found = probabilities(scores, params)
    shares = scores.double().softmax(-1).sort(descending=True, stable=True)
    count = int((shares.values.cumsum(-1) - shares.values < 0.9).sum())
    assert set(found.nonzero()[:, 0].tolist()) == set(shares.indices[:count].tolist())


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_what_is_not_finite_is_told(bad: float, temperature: float):
    sampler = Sampler(SamplingParams(max_tokens=1, temperature=temperature), [], 3, CPU)
    with pytest.raises(WorkerError, match="not finite"):
        sampler.sample(torch.tensor([0.0, bad, 1.0]))
