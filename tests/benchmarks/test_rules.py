"""The rules of the chaos benchmarks on series whose verdict is known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.chaos.rules import MIB, BoundedFigure, account, growth, percentile, rise_percent, spread, theil_sen
from benchmarks.chaos.sdk_robot import Change, first

FRAMES = np.linspace(0, 200_000, 401)
NOISE = np.random.default_rng(0).normal(0, 0.05 * MIB, FRAMES.shape)
FLAT = 100.0 * MIB + NOISE


def test_flat_memory_is_bounded():
    found = growth(FRAMES, FLAT)
    assert found.bounded
    assert found.early_bytes == pytest.approx(100 * MIB, rel=0.01)


def test_a_warm_up_that_ends_in_time_is_no_growth():
    assert growth(FRAMES, FLAT + 50 * MIB * np.minimum(FRAMES / 60_000, 1)).bounded
    assert not growth(FRAMES, FLAT + 50 * MIB * np.minimum(FRAMES / 160_000, 1)).bounded


@pytest.mark.parametrize(("leak", "bounded"), [(256, False), (16, False), (5, True)])
def test_a_leak_of_bytes_a_frame(leak, bounded):
    found = growth(FRAMES, FLAT + leak * FRAMES)
    assert found.bounded == bounded
    assert found.slope_bytes == pytest.approx(leak * 100_000, abs=0.1 * MIB)


def test_a_single_step_fails_by_the_windows_not_by_the_slope():
    found = growth(FRAMES, FLAT + 9 * MIB * (FRAMES > 190_000 * 0.94))
    assert found.slope_bytes < MIB
    assert not found.bounded


def test_one_per_cent_counts_where_eight_mebibytes_would_not():
    step = 1.5 * MIB * (0.88 * FRAMES[-1] < FRAMES)
    assert not growth(FRAMES, FLAT + step).bounded
    assert growth(FRAMES, FLAT + 900 * MIB + step).bounded


def test_too_few_samples_are_rejected():
    with pytest.raises(ValueError, match="samples in the windows"):
        growth([0, 50, 100], [1, 1, 1])


def test_theil_sen_ignores_outliers():
    x = np.arange(50.0)
    y = 3 * x
    y[[5, 25, 45]] += 1000
    assert theil_sen(x, y) == pytest.approx(3, rel=0.02)


def test_theil_sen_of_samples_at_the_same_frame():
    assert theil_sen(np.array([0.0, 0.0, 1.0]), np.array([0.0, 0.0, 2.0])) == 2


def test_percentiles():
    assert percentile(list(range(101)), 99) == 99
    assert math.isnan(percentile([], 50))
    assert rise_percent([11.0, 11.0], [10.0, 10.0], 99) == pytest.approx(10)


def test_nothing_measured_meets_no_bar():
    assert not BoundedFigure("x", math.nan, "", 1).met
    assert BoundedFigure("x", math.nan).met
    assert [row.met for row in spread("x", [], "ms", max=10)] == [True, True, False]


def test_a_bar_is_met_at_its_value():
    assert BoundedFigure("x", 10, "ms", 10).met
    assert not BoundedFigure("x", 10.01, "ms", 10).met
    assert [row.met for row in spread("x", [1, 2, 300], "ms", p50=2, max=250)] == [True, True, False]


def test_every_accepted_frame_has_one_disposition():
    found = account([1, 2, 3], {1: 1, 2: 1, 3: 1})
    assert (found.accepted, found.untold, found.repeated, found.strange) == (3, (), (), ())


def test_missing_repeated_and_unexpected_dispositions():
    found = account([1, 2, 3], {1: 1, 3: 2, 7: 1})
    assert (found.untold, found.repeated, found.strange) == ((2,), (3,), (7,))


SAID = [Change(at_ns, command, "", 0) for at_ns, command in ((10, "hold"), (20, "act"), (30, "hold"), (40, "act"))]


@pytest.mark.parametrize(
    ("command", "since_ns", "at_ns"),
    [("act", 25, 20), ("hold", 25, 30), ("act", 35, 40), ("hold", 5, 10), ("hold", 45, None), ("act", 20, 20)],
)
def test_the_change_in_force_or_the_next(command, since_ns, at_ns):
    found = first(SAID, command, since_ns)
    assert (found and found.at_ns) == at_ns
