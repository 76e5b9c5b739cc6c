"""The writer of safetensors files: a file has the mode of any new file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from edgeflow.lab.tensor_files import write_tensors


@contextmanager
def masked(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_the_mode_is_that_of_any_new_file(mask: int, mode: int, tmp_path: Path):
    """Left as they are by a run that was killed, neither the file nor its draft keeps its mode."""
    path = tmp_path / "model.safetensors"
    for left in (path, tmp_path / "model.safetensors.partial"):
        left.touch(0o640)
    with masked(mask):
        write_tensors(path, {"a": torch.arange(6).view(2, 3).t()}, {"format": "pt"})
    assert path.stat().st_mode & 0o777 == mode
    assert load_file(path)["a"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert [each.name for each in tmp_path.iterdir()] == ["model.safetensors"]
