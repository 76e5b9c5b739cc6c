"""The passes that drafted frames need: the estimate, its draws and its memory."""

from __future__ import annotations

import random
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeflow.scheduler.verification import (
    KEPT_SAMPLES,
    LEAST_SAMPLES,
    STRATA,
    WHOLE,
    Draws,
    VerificationModel,
    VerificationPasses,
    VerificationSample,
    estimate,
)

STAGES = 7


def sample(passes: int, verified: bool = True, tolerance_bins: int = 0) -> VerificationSample:
    return VerificationSample(STAGES, tolerance_bins, passes, verified)


SAMPLES = st.lists(st.builds(sample, st.integers(1, STAGES - 1), st.booleans()) | st.just(sample(STAGES)), max_size=60)


def twin(samples: list[VerificationSample]) -> list[Fraction]:
    """The product of Kaplan and Meier, by going through the frames once per pass."""
    shares, remain = [], Fraction(1)
    for passes in range(1, STAGES):
        at_risk = sum(each.passes >= passes for each in samples)
        verified = sum(each.passes == passes and each.verified for each in samples)
        hazard = Fraction(verified, at_risk) if at_risk else Fraction(0)
        shares.append(remain * hazard)
        remain *= 1 - hazard
    return [*shares, remain]


@given(samples=SAMPLES)
def test_the_estimate_is_the_product_of_kaplan_and_meier(samples: list[VerificationSample]):
    found = estimate(samples, STAGES)
    assert sum(found.shares) == WHOLE
    for share, exact in zip(found.shares, twin(samples), strict=True):
        assert abs(share - exact * WHOLE) <= STAGES, "rounded once per pass"


def test_without_frames_that_leave_early_shares_are_counted():
    found = estimate([sample(1)] * 2 + [sample(2)] * 5 + [sample(4)] * 1, STAGES)
    assert found.shares == (WHOLE // 4, WHOLE * 5 // 8, 0, WHOLE // 8, 0, 0, 0)
    assert found.mean_percent == 200


def test_nothing_known_means_all_passes():
    assert estimate([], STAGES).shares == (0, 0, 0, 0, 0, 0, WHOLE)
    assert estimate([sample(2, verified=False)] * 9, STAGES).mean_percent == 700
    assert estimate([sample(1, verified=False)] * 3 + [sample(1)], STAGES).shares == (
        WHOLE // 4,
        *[0] * 5,
        WHOLE * 3 // 4,
    )


def test_overtaking_does_not_hide_slow_frames():
    """Slow frames leave early more often than quick ones; those that are seen to be verified are quicker than all
    are.
    """
    dice = random.Random(1)
    weights = (30, 30, 10, 10, 10, 5, 5)
    samples = []
    for _ in range(20_000):
        (verified_in,) = dice.choices(range(1, STAGES + 1), weights)
        leaves = dice.choice((1, 2, 3, 9))
        samples.append(sample(min(verified_in, leaves), verified_in <= leaves))
    counted = Counter(each.passes for each in samples if each.verified)
    plain = sum(passes * count for passes, count in counted.items()) / counted.total()
    truth = sum(passes * weight for passes, weight in enumerate(weights, 1)) / 100
    assert plain < truth - 0.5
    assert estimate(samples, STAGES).mean_percent == pytest.approx(100 * truth, rel=0.02)


@given(weights=st.lists(st.integers(0, 50), min_size=STAGES, max_size=STAGES).filter(any), seed=st.integers(0, 99))
def test_draws_have_the_shares(weights: list[int], seed: int):
    shares = [WHOLE * weight // sum(weights) for weight in weights]
    draws = Draws(VerificationPasses((*shares[:-1], WHOLE - sum(shares[:-1]))), seed)
    for _ in range(3):
        drawn = Counter(draws.take() for _ in range(STRATA))
        for passes, weight in enumerate(weights, 1):
            assert abs(drawn[passes] - STRATA * weight / sum(weights)) <= 1.1


def test_draws_that_follow_each_other_are_independent():
    """Half of the frames are slow; pairs and triples of slow and quick ones are equally frequent."""
    draws = Draws(VerificationPasses((WHOLE // 2, 0, 0, 0, 0, 0, WHOLE // 2)), 1)
    drawn = [draws.take() for _ in range(100 * STRATA)]
    for length in (2, 3):
        runs = Counter(zip(*(drawn[start:] for start in range(length)), strict=False))
        assert len(runs) == 2**length
        assert all(abs(count / len(drawn) - 0.5**length) < 0.02 for count in runs.values())


def test_draws_are_the_same_for_the_same_seed():
    quick = VerificationPasses((WHOLE // 2, WHOLE // 4, WHOLE // 4))
    one, same, other = (Draws(quick, seed) for seed in (1, 1, 2))
    taken = [[draws.take() for _ in range(3 * STRATA)] for draws in (one, same, other)]
    assert taken[0] == taken[1] != taken[2]


def test_a_tolerance_is_known_once_there_are_enough_frames_of_it():
    model = VerificationModel()
    assert not model.observe([sample(2)] * (LEAST_SAMPLES - 1))
    assert model.of(STAGES, 0) is None
    assert model.observe([sample(2)])
    assert model.of(STAGES, 0) == VerificationPasses((0, WHOLE, 0, 0, 0, 0, 0))
    assert model.of(STAGES, 1) is None
    assert model.observe([sample(1, tolerance_bins=1)] * LEAST_SAMPLES)
    known = model.of(STAGES, 0), model.of(STAGES, 1)
    assert known == (VerificationPasses((0, WHOLE, 0, 0, 0, 0, 0)), VerificationPasses((WHOLE, 0, 0, 0, 0, 0, 0)))


def test_answers_of_another_width_have_their_own_measurement():
    model = VerificationModel()
    assert model.observe([sample(2)] * LEAST_SAMPLES)
    assert model.of(4, 0) is None
    assert model.observe([VerificationSample(4, 0, 1, True)] * LEAST_SAMPLES)
    assert model.of(4, 0) == VerificationPasses((WHOLE, 0, 0, 0))
    assert model.of(STAGES, 0) == VerificationPasses((0, WHOLE, 0, 0, 0, 0, 0))


def test_only_large_changes_are_reported():
    model = VerificationModel()
    assert model.observe([sample(2)] * 100)
    assert not model.observe([sample(3)] * 24), "a mean of 2.19 is within 10 % of 2"
    assert not model.observe([])
    assert model.observe([sample(3)] * 6), "2.23 is not"
    assert not model.observe([sample(2)] * 5)


def test_old_frames_are_forgotten():
    model = VerificationModel()
    model.observe([sample(6)] * KEPT_SAMPLES)
    assert model.observe([sample(1)] * KEPT_SAMPLES)
    assert model.of(STAGES, 0) == VerificationPasses((WHOLE, 0, 0, 0, 0, 0, 0))
