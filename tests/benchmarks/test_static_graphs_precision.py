"""The figures of quantised graphs that the benchmarks state, from errors and successes that are given."""

from __future__ import annotations

import pytest

from benchmarks.static_graphs.closed_loop import missed
from benchmarks.static_graphs.precision import ALL, STEPS, gains
from benchmarks.static_graphs.substitutions import VARIANTS


def test_the_gain_is_the_error_calibrated_on_the_first_step_over_that_of_all():
    row = {"all": {ALL: {"chunk": 0.2}, STEPS: {"chunk": 0.1}}, "first": {ALL: {"chunk": 0.3}, STEPS: {"chunk": 0.4}}}
    assert gains({"w8a8": row}) == {"w8a8": {ALL: pytest.approx(1.5), STEPS: pytest.approx(4.0)}}


@pytest.mark.parametrize(("successes", "lines"), [(196, 0), (195, 1)])
def test_two_points_below_floats_are_the_most_at_16_bits(successes: int, lines: int):
    shares = {"float32": 200, "int16": successes, "w8a8": 20}
    rows = [{"precision": name, "speed_cm_s": 5.0, "success": count / 200} for name, count in shares.items()]
    assert len(missed(rows)) == lines


def test_every_substitution_is_measured_alone_and_left_out():
    sizes = sorted(len(names) for names in VARIANTS.values())
    assert sizes == [0, 1, 1, 1, 2, 2, 2, 3]
    assert len(set(VARIANTS.values())) == 8
