"""Blending of chunks against its naive twin, and the temporal ensemble against recorded outputs of ACT."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from edgeflow_client.blending import (
    LATEST,
    MAX_ENSEMBLE,
    Blender,
    Blending,
    Latest,
    TemporalEnsemble,
    Weighted,
    ensemble_weights,
    overlap,
)
from edgeflow_client.errors import InvalidArgument
from edgeflow_client.timeline import Timeline
from tests.oracles import oracle

STEP_NS = 20_000_000
BUNDLE = "act-tiny"
ENSEMBLES = ["coef_0.01", "coef_0", "coef_-0.1"]

horizons = st.integers(2, 12)
gaps_ns = st.lists(st.integers(-STEP_NS, 5 * STEP_NS), min_size=1, max_size=12)
blendings = st.one_of(
    st.just(LATEST),
    st.builds(Weighted, st.floats(0.01, 1.0)),
    st.builds(TemporalEnsemble, st.floats(-1.0, 1.0)),
)


def chunks_of(horizon: int, gaps: list[int], seed: int) -> list[tuple[int, np.ndarray]]:
    rng = np.random.default_rng(seed)
    stamps = np.cumsum([10**9, *gaps])
    return [(int(stamp), rng.uniform(-1, 1, (horizon, 3))) for stamp in stamps]


def play(blending: Blending, chunks: list[tuple[int, np.ndarray]], step_ns: int = STEP_NS) -> list[np.ndarray]:
    blender, played = Blender(blending), []
    for stamp_ns, raw in chunks:
        chunk = blender.blended(raw.copy(), Timeline(stamp_ns, step_ns, len(raw)), epoch=1)
        blender.accepted(chunk, epoch=1)
        played.append(chunk.played)
    return played


def naive(blending: Blending, chunks: list[tuple[int, np.ndarray]]) -> list[np.ndarray]:
    """Number by number: which rows are for this moment, and what their mean is."""
    played: list[np.ndarray] = []
    for newest, (stamp_ns, raw) in enumerate(chunks):
        result = raw.copy()
        for row, column in np.ndindex(*raw.shape):

            def value_of(index, rows, row=row, column=column, stamp_ns=stamp_ns):
                there = row + round((stamp_ns - chunks[index][0]) / STEP_NS)
                return rows[there][column] if 0 <= there < len(rows) else None

            if isinstance(blending, Weighted) and newest:
                old = value_of(newest - 1, played[-1])
                if old is not None:
                    result[row, column] = (1 - blending.new) * old + blending.new * raw[row, column]
            if isinstance(blending, TemporalEnsemble):
                first = max(0, newest + 1 - len(raw))
                entries = [value_of(index, chunks[index][1]) for index in range(first, newest + 1)]
                entries = [entry for entry in entries if entry is not None]
                weights = [math.exp(-blending.coefficient * i) for i in range(len(entries))]
                total = sum(weight * entry for weight, entry in zip(weights, entries, strict=True))
                result[row, column] = total / sum(weights)
        played.append(result)
    return played


@settings(deadline=None)
@given(blendings, horizons, gaps_ns, st.integers(0, 1000))
def test_chunks_of_any_stamps_are_blended_as_by_the_naive_twin(blending, horizon, gaps, seed):
    chunks = chunks_of(horizon, gaps, seed)
    for found, expected in zip(play(blending, chunks), naive(blending, chunks), strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@settings(deadline=None)
@given(blendings, horizons, gaps_ns, st.integers(0, 1000))
def test_a_blended_number_is_between_those_that_it_is_made_of(blending, horizon, gaps, seed):
    chunks = chunks_of(horizon, gaps, seed)
    low, high = min(raw.min() for _, raw in chunks), max(raw.max() for _, raw in chunks)
    for played in play(blending, chunks):
        assert low - 1e-12 <= played.min() and played.max() <= high + 1e-12


@pytest.mark.oracle(BUNDLE)
@pytest.mark.parametrize("name", ENSEMBLES)
def test_the_temporal_ensemble_gives_the_recorded_actions(name):
    cases = json.loads((oracle(BUNDLE) / "cases.json").read_text())["ensemble"]
    (case,) = [case for case in cases if case["name"] == name]
    tensors = load_file(oracle(BUNDLE) / "expected.safetensors")
    chunks, actions = tensors[f"ensemble.{name}.in.chunks"], tensors[f"ensemble.{name}.out.actions"]
    assert len(chunks) == case["steps"]
    for robot in range(case["batch_size"]):
        arriving = [(step * STEP_NS, chunk[robot].astype(np.float64)) for step, chunk in enumerate(chunks)]
        played = [chunk[0] for chunk in play(TemporalEnsemble(case["coefficient"]), arriving)]
        np.testing.assert_allclose(played, actions[:, robot], rtol=0, atol=1e-6)


@pytest.mark.oracle(BUNDLE)
def test_no_recorded_ensemble_is_left_out():
    cases = json.loads((oracle(BUNDLE) / "cases.json").read_text())["ensemble"]
    assert sorted(case["name"] for case in cases) == sorted(ENSEMBLES)


@given(st.integers(1, MAX_ENSEMBLE), st.floats(-10, 10))
def test_ensemble_weights_fall_by_one_factor_from_the_oldest(count, coefficient):
    weights = ensemble_weights(count, coefficient)
    assert weights.shape == (count,)
    assert weights.sum() == pytest.approx(1.0)
    np.testing.assert_allclose(weights[1:], weights[:-1] * math.exp(-coefficient), rtol=1e-9, atol=1e-300)


@given(st.integers(-30, 30), st.integers(1, 12))
def test_rows_overlap_where_both_chunks_have_one(shift, horizon):
    here, there = overlap(shift, horizon)
    pairs = list(zip(range(horizon)[here], range(horizon)[there], strict=True))
    assert pairs == [(row, row + shift) for row in range(horizon) if 0 <= row + shift < horizon]


def test_weighted_is_30_percent_of_the_last_chunk_and_70_percent_of_the_newest():
    ones, twos, threes = (np.full((4, 1), value) for value in (1.0, 2.0, 3.0))
    played = play(Weighted(), [(0, ones), (STEP_NS, twos), (3 * STEP_NS, threes)])
    np.testing.assert_allclose(played[1][:, 0], [1.7, 1.7, 1.7, 2.0])
    np.testing.assert_allclose(played[2][:, 0], [0.3 * 1.7 + 2.1, 0.3 * 2.0 + 2.1, 3.0, 3.0])


@pytest.mark.parametrize("blending", [Weighted(), TemporalEnsemble()])
def test_chunks_of_another_epoch_or_of_before_a_restart_do_not_count(blending):
    blender, old, new = Blender(blending), np.zeros((4, 1)), np.ones((4, 1))
    blender.accepted(blender.blended(old, Timeline(0, STEP_NS, 4), epoch=1), epoch=1)
    timeline = Timeline(STEP_NS, STEP_NS, 4)
    assert blender.blended(new.copy(), timeline, epoch=1).played[0, 0] < 1.0
    assert blender.blended(new.copy(), timeline, epoch=2).played[0, 0] == 1.0
    blender.restart()
    assert blender.blended(new.copy(), timeline, epoch=1).played[0, 0] == 1.0


def test_a_chunk_that_was_not_accepted_does_not_count():
    blender = Blender(Weighted())
    blender.blended(np.zeros((4, 1)), Timeline(0, STEP_NS, 4), epoch=1)
    assert blender.blended(np.ones((4, 1)), Timeline(0, STEP_NS, 4), epoch=1).played[0, 0] == 1.0


@pytest.mark.parametrize("blending", [LATEST, Weighted(), TemporalEnsemble()])
def test_single_actions_are_never_blended(blending):
    for played, value in zip(play(blending, [(0, np.zeros((1, 2))), (0, np.ones((1, 2)))], 0), (0, 1), strict=True):
        assert (played == value).all()


@pytest.mark.parametrize(("horizon", "most"), [(2, 2), (50, 50), (1000, MAX_ENSEMBLE)])
def test_an_ensemble_keeps_as_many_chunks_as_the_horizon_and_no_more_than_its_bound(horizon, most):
    """All at the same moment: the mean of the last `most` of them, with a coefficient of 0."""
    chunks = [(0, np.full((horizon, 1), float(number))) for number in range(most + 7)]
    played = play(TemporalEnsemble(0.0), chunks)
    np.testing.assert_allclose(played[-1], np.mean(range(7, most + 7)))


def test_huge_numbers_stay_finite():
    chunks = [(0, np.full((4, 1), 1.7e308)) for _ in range(4)]
    for blending in (Weighted(), TemporalEnsemble(0.0), TemporalEnsemble(-1.0)):
        assert np.isfinite(play(blending, chunks)[-1]).all()


def test_a_chunk_in_execution_cannot_be_changed():
    chunk = Blender(LATEST).blended(np.zeros((4, 1)), Timeline(0, STEP_NS, 4), epoch=1)
    with pytest.raises(ValueError, match="read-only"):
        chunk.played[0] = 1.0


@pytest.mark.parametrize("new", [0.0, -0.1, 1.1, math.nan, "0.7", None])
def test_an_invalid_share_is_rejected(new):
    with pytest.raises(InvalidArgument, match=r"weighted\.new: must be above 0 and at most 1"):
        Weighted(new)


@pytest.mark.parametrize("coefficient", [-10.1, 10.1, math.nan, math.inf, "0.01", None])
def test_a_coefficient_out_of_range_is_rejected(coefficient):
    with pytest.raises(InvalidArgument, match=r"temporal_ensemble\.coefficient: must be -10 to 10"):
        TemporalEnsemble(coefficient)


def test_policies_are_values():
    assert Latest() == LATEST and Weighted() == Weighted(0.7) and TemporalEnsemble() == TemporalEnsemble(0.01)
