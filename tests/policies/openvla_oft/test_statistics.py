"""Normalisation by the statistics of a data set, and which of several serves."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeflow.policies.openvla_oft.config import OFTSettings, VectorBounds, read_statistics
from edgeflow_client.errors import CheckpointError, ConfigError

LIST = ("dataset_statistics.json", "one")


def settings(**other: object) -> OFTSettings:
    own = {"chunk": 2, "dims": 2, "proprio": 0, "images": 1, "bounds": "q99", "control_rate_hz": 5.0}
    return OFTSettings.of({**own, **other})


def entry(low: float = 0.0, count: int = 2, **other: object) -> dict:
    values = {"min": low - 1, "q01": low, "q99": low + 2, "max": low + 3}
    return {key: [value] * count for key, value in values.items()} | other


def write(directory: Path, entries: object, name: str = "dataset_statistics.json") -> Path:
    directory.mkdir(exist_ok=True)
    (directory / name).write_text(json.dumps(entries))
    return directory


def test_bounds_are_chosen_by_the_settings(tmp_path: Path):
    directory = write(tmp_path, {"one": {"action": entry()}})
    quantiles = read_statistics(directory, settings()).actions["one"]
    extremes = read_statistics(directory, settings(bounds="min_max")).actions["one"]
    assert (quantiles.low.tolist(), quantiles.high.tolist()) == ([0, 0], [2, 2])
    assert (extremes.low.tolist(), extremes.high.tolist()) == ([-1, -1], [3, 3])


def test_a_file_of_statistics_overrides_those_of_the_configuration(tmp_path: Path):
    write(tmp_path, {"norm_stats": {"other": {"action": entry(7)}}}, "config.json")
    assert list(read_statistics(tmp_path, settings()).actions) == ["other"]
    write(tmp_path, {"one": {"action": entry()}})
    assert list(read_statistics(tmp_path, settings()).actions) == ["one"]


def test_data_sets_of_other_widths_are_left_out(tmp_path: Path):
    directory = write(tmp_path, {"one": {"action": entry()}, "wide": {"action": entry(count=3)}})
    assert list(read_statistics(directory, settings()).actions) == ["one"]
    with pytest.raises(ConfigError) as caught:
        read_statistics(directory, settings(dims=4))
    assert str(caught.value) == "policy.dims: is 4; actions in dataset_statistics.json have 2, 3"


def test_one_of_several_is_chosen_where_a_state_is_normalised(tmp_path: Path):
    entries = {name: {"action": entry(), "proprio": entry(low, 3)} for low, name in enumerate("ab")}
    directory = write(tmp_path, entries)
    assert list(read_statistics(directory, settings()).actions) == ["a", "b"]
    with pytest.raises(ConfigError) as caught:
        read_statistics(directory, settings(proprio=3))
    assert str(caught.value) == "policy.dataset: choose one of a, b: its statistics normalise the state"
    chosen = read_statistics(directory, settings(proprio=3, dataset="b"))
    assert list(chosen.actions) == ["b"] and chosen.proprio is not None and chosen.proprio.low.tolist() == [1] * 3
    with pytest.raises(ConfigError) as caught:
        read_statistics(directory, settings(dataset="c"))
    assert str(caught.value) == "policy.dataset: 'c' is not one of a, b"


WRONG = [
    ({}, {}, "config.json norm_stats names no data set: actions cannot be un-normalised"),
    ({"one": 3}, {}, "dataset_statistics.json one.action lacks q01 or min: copy the checkpoint again"),
    ({"one": {"action": entry(q99=None)}}, {}, "dataset_statistics.json one.action.q99 must be a list of numbers"),
    ({"one": {"action": entry(q99=[1, True])}}, {}, "dataset_statistics.json one.action.q99 must be a list of numbers"),
    ({"one": {"action": entry(q99=[1])}}, {}, "dataset_statistics.json one.action.q99 has 1 numbers, expected 2"),
    ({"one": {"action": entry(q99=[1, float("inf")])}}, {}, "dataset_statistics.json one.action.q99 must be finite"),
    ({"one": {"action": entry(q99=[1, 10**400])}}, {}, "dataset_statistics.json one.action.q99 must be finite"),
    ({"one": {"action": entry(q99=[-1, 1])}}, {}, "dataset_statistics.json one.action: q01 is above q99"),
    ({"one": {"action": entry(mask=[1, 0])}}, {}, "one.action.mask must be a list of true and false"),
    ({"one": {"action": entry(mask=[True])}}, {}, "one.action.mask has 1 entries, expected 2"),
    ({"one": {"action": entry()}}, {"proprio": 3}, "dataset_statistics.json one.proprio is missing"),
    ({"one": {"action": entry(), "proprio": entry()}}, {"proprio": 3}, "one.proprio.q01 has 2 numbers, expected 3"),
]


@pytest.mark.parametrize(("entries", "other", "message"), WRONG, ids=[wrong[2] for wrong in WRONG])
def test_wrong_statistics_are_rejected(tmp_path: Path, entries: dict, other: dict, message: str):
    write(tmp_path, {}, "config.json")
    with pytest.raises(CheckpointError) as caught:
        read_statistics(write(tmp_path, entries), settings(**other))
    assert message in str(caught.value)


numbers = st.lists(st.floats(-100, 100), min_size=4, max_size=4).map(np.array)
spans = st.lists(st.floats(0.01, 100), min_size=4, max_size=4).map(np.array)
masks = st.lists(st.booleans(), min_size=4, max_size=4).map(np.array)


def bounds(low: np.ndarray, span: np.ndarray, mask: np.ndarray) -> VectorBounds:
    return VectorBounds(low, low + span, mask, (low, low + span))


@given(numbers, spans, masks, st.lists(st.floats(0, 1), min_size=4, max_size=4).map(np.array))
def test_normalisation_is_undone(low: np.ndarray, span: np.ndarray, mask: np.ndarray, share: np.ndarray):
    subject = bounds(low, span, mask)
    values = np.where(mask, low + share * span, 2 * share - 1)
    normalised = subject.normalised(values)
    assert (abs(normalised) <= 1).all()
    np.testing.assert_allclose(subject.unnormalised(normalised), values, rtol=0, atol=1e-7)


@given(numbers, spans, masks, numbers)
def test_values_beyond_the_bounds_are_clipped_when_normalised(low, span, mask, values):
    subject = bounds(low, span, mask)
    found = subject.normalised(values)
    scaled = 2 * (values - low) / (span + 1e-8) - 1
    np.testing.assert_allclose(found, np.clip(np.where(mask, scaled, values), -1, 1), rtol=0, atol=1e-6)


def test_the_ends_are_the_bounds_and_beyond_them_nothing_is_cut():
    subject = bounds(np.array([1.0, 1.0]), np.array([2.0, 2.0]), np.array([True, False]))
    assert subject.unnormalised(np.array([[-1.0, -1.0], [3.0, 3.0]])).tolist() == [[1, -1], [5 + 2e-8, 3]]


def test_unnormalised_dimensions_have_the_range_of_the_data(tmp_path: Path):
    directory = write(tmp_path, {"one": {"action": entry(mask=[True, False])}})
    low, high = read_statistics(directory, settings()).actions["one"].limits
    assert (low.tolist(), high.tolist()) == ([0, -1], [2, 3])
    short = {key: value for key, value in entry(mask=[True, False]).items() if key not in ("min", "max")}
    low, high = read_statistics(write(tmp_path, {"one": {"action": short}}), settings()).actions["one"].limits
    assert (low.tolist(), high.tolist()) == ([0, 0], [2, 2])
