"""Errors of chunks: relative ones by step, and those of actions in their units."""

from __future__ import annotations

import numpy as np
import pytest

from edgeflow.lab.export.quantised.errors import flow_errors
from edgeflow.lab.export.quantised.flow_loop import Denoised

STEPS, BATCH, HORIZON, DIMS = 3, 2, 4, 3
UNITS = np.array([2.0, 10.0])


def denoised(seed: int) -> Denoised:
    generator = np.random.default_rng(seed)
    shape = (BATCH, HORIZON, DIMS)
    values = [generator.standard_normal(shape, np.float32) for _ in range(2 * STEPS + 1)]
    return Denoised(x=tuple(values[: STEPS + 1]), velocity=tuple(values[STEPS + 1 :]))


def scaled(answer: Denoised, factor: float) -> Denoised:
    return Denoised(
        x=tuple(each * np.float32(factor) for each in answer.x),
        velocity=tuple(each * np.float32(factor) for each in answer.velocity),
    )


def actions(values: np.ndarray) -> np.ndarray:
    return values[:2, :2] * UNITS


def test_a_scaled_answer_is_off_by_the_scale():
    expected = [denoised(0), denoised(1)]
    found = flow_errors(expected, [scaled(each, 1.25) for each in expected], actions)
    assert found.velocity == pytest.approx([0.25] * STEPS, rel=1e-6)
    assert found.x == pytest.approx([0.25] * STEPS, rel=1e-6)
    assert found.chunk == found.x[-1]
    off = np.stack([0.25 * UNITS * row[:2] for each in expected for chunk in each.x[-1] for row in chunk[:2]])
    assert found.actions == pytest.approx(np.sqrt((off**2).mean(axis=0)), rel=1e-6)
    assert found.largest == pytest.approx(np.abs(off).max(axis=0), rel=1e-6)


def test_errors_are_weighed_over_all_answers():
    expected = [denoised(0), scaled(denoised(1), 100.0)]
    found = flow_errors(expected, [scaled(expected[0], 2.0), expected[1]], actions)
    assert max(found.x) < 0.02
