"""Normalisation forwards and backwards."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from edgeflow.policies.lerobot import MEAN_STD, RANGES, Affine, read_statistics
from edgeflow_client.errors import CheckpointError

LOW, HIGH = np.array([-2.0, 0.5, 3.0], np.float32), np.array([1.0, 4.5, 3.0], np.float32)


@pytest.mark.parametrize("kind", [MEAN_STD, *RANGES])
def test_normalisation_is_undone(kind: str):
    """But for a number whose statistics leave it no room."""
    values = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    affine = Affine.of(kind, [LOW, HIGH], 1e-8)
    back = affine.restored(affine.normalised(values).astype(np.float64))
    np.testing.assert_allclose(back[:, :2], values[:, :2], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", [MEAN_STD, *RANGES])
def test_restoring_is_inverted_where_the_scale_is_not_0(kind: str):
    affine = Affine.of(kind, [LOW, np.array([1.0, 4.5, 0.0], np.float32)], 1e-8)
    values = np.random.default_rng(0).normal(size=(5, 3))
    again = affine.unrestored(affine.restored(values))
    np.testing.assert_allclose(again[:, :2], values[:, :2], rtol=1e-12)
    assert np.isfinite(again[:, 2]).any() == (kind != MEAN_STD)


@pytest.mark.parametrize("kind", RANGES)
def test_the_ends_of_a_range(kind: str):
    affine = Affine.of(kind, [LOW, HIGH], 1e-8)
    ends = affine.normalised(np.stack([LOW, HIGH]))
    assert ends[:, :2].tolist() == [[-1.0, -1.0], [1.0, 1.0]]
    assert ends[0, 2] == ends[1, 2] == -1.0


@pytest.mark.parametrize("spelled", ["so100.action.mean", "so100_buffer_action.mean", "so100_action.mean"])
def test_statistics_of_several_data_sets_are_named(tmp_path: Path, spelled: str):
    values = {spelled: HIGH, spelled.replace("so100", "koch-blue"): LOW}
    save_file(values, tmp_path / "s.safetensors")
    told = r"s\.safetensors has action\.mean for each of the data sets koch-blue, so100, .*: fine-tune the policy"
    with pytest.raises(CheckpointError, match=told):
        read_statistics(tmp_path / "s.safetensors", {"action.mean": (3,)})
    save_file({"unaction.mean": HIGH}, tmp_path / "s.safetensors")
    with pytest.raises(CheckpointError, match=r"lacks action\.mean, .*: copy the checkpoint again"):
        read_statistics(tmp_path / "s.safetensors", {"action.mean": (3,)})
