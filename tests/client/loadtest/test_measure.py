"""The measuring kit against numpy, on random data."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeflow_client.loadtest.intervals import mean, wilson
from edgeflow_client.loadtest.measure import RunRecorder, distribution

SECOND = 1_000_000_000


@pytest.mark.parametrize("seed", range(5))
def test_percentiles_are_those_of_the_data(seed):
    data = np.random.default_rng(seed).gamma(2.0, 30.0, 3000)
    of = distribution(data)
    assert (of.count, of.max) == (3000, data.max())
    np.testing.assert_allclose([of.mean, of.deviation], [data.mean(), data.std()])
    np.testing.assert_allclose([of.p50, of.p90, of.p99, of.p999], np.quantile(data, [0.5, 0.9, 0.99, 0.999]))


def test_no_data_is_not_zero():
    of = distribution([])
    assert of.count == 0 and math.isnan(of.p50) and math.isnan(of.max)


@given(st.lists(st.tuples(st.lists(st.integers(0, 3_000), max_size=40), st.integers(1, 3_000)), min_size=1, max_size=4))
@settings(max_examples=100, deadline=None)
def test_only_actions_inside_stretches_count(stretches):
    """stretches: receipt times in ms from the stretch's start, and its length; ages are the receipt times."""
    recorder, now_ms, inside, intervals = RunRecorder(), 1000, [], []
    for times, length in stretches:
        recorder.record(now_ms * 1_000_000, 1)
        recorder.start(now_ms * 1_000_000)
        kept = sorted(time for time in times if time <= length)
        for time in kept:
            recorder.record((now_ms + time) * 1_000_000, time * 1_000_000)
        now_ms += length
        recorder.stop(now_ms * 1_000_000)
        now_ms += 500
        inside += kept
        intervals += list(np.diff(kept))
    summary = recorder.summary(now_ms * 1_000_000)
    seconds = sum(length for _, length in stretches) / 1000
    assert summary.seconds == pytest.approx(seconds)
    assert summary.actions == len(inside)
    assert summary.fps == pytest.approx(len(inside) / seconds)
    assert summary.interval_ms.count == len(intervals)
    if inside:
        assert summary.age_ms.p50 == pytest.approx(np.median(inside))
    if intervals:
        assert summary.jitter_ms == pytest.approx(np.std(intervals))


def test_the_series_counts_actions_window_by_window():
    recorder = RunRecorder()
    recorder.start(0)
    for tenths in (1, 2, 3, 11, 12, 35):
        recorder.record(tenths * SECOND // 10, tenths * 1_000_000)
    recorder.stop(3 * SECOND + SECOND // 2)
    series = recorder.series(1.0)
    assert series.seconds.tolist() == [0.5, 1.5, 2.5]
    assert series.fps.tolist() == [3.0, 2.0, 0.0]
    assert series.age_ms[:2].tolist() == [2.0, 11.5]
    assert np.isnan(series.age_ms[2])


def test_stretches_do_not_overlap():
    recorder = RunRecorder()
    recorder.start(0)
    with pytest.raises(ValueError, match="already"):
        recorder.start(1)


@pytest.mark.parametrize(("successes", "trials"), [(0, 10), (10, 10), (7, 10), (190, 200), (1, 1)])
def test_wilson_is_where_the_score_test_just_passes(successes, trials):
    """The interval's ends p solve |share - p| = z sqrt(p (1 - p) / n); brute force over a grid."""
    share = successes / trials
    grid = np.linspace(0, 1, 200_001)
    inside = grid[np.abs(share - grid) <= 1.959964 * np.sqrt(grid * (1 - grid) / trials)]
    of = wilson(successes, trials)
    np.testing.assert_allclose([of.value, of.low, of.high], [share, inside.min(), inside.max()], atol=2e-5)


def test_wilson_contains_the_share_whatever_the_rounding():
    for trials in range(1, 200):
        for successes in (0, 1, trials - 1, trials):
            of = wilson(successes, trials)
            assert 0.0 <= of.low <= of.value <= of.high <= 1.0


def test_without_trials_nothing_is_known():
    of = wilson(0, 0)
    assert (of.low, of.high) == (0.0, 1.0) and math.isnan(of.value)
    with pytest.raises(ValueError, match="trials"):
        wilson(3, 2)


@pytest.mark.parametrize("count", [2, 5, 30, 31, 60])
def test_the_interval_of_a_mean_covers_it_95_times_in_100(count):
    """4000 samples: the covered share has a standard error of 0.35 %, so 5 of them is a false alarm in 10^6."""
    rng = np.random.default_rng(count)
    covered = 0
    for _ in range(4000):
        of = mean(rng.normal(3.0, 2.0, count).tolist())
        covered += of.low <= 3.0 <= of.high
    assert abs(covered / 4000 - 0.95) < 5 * 0.0035


def test_one_repetition_says_nothing_about_spread():
    of = mean([4.0])
    assert (of.value, of.low, of.high) == (4.0, -math.inf, math.inf)
