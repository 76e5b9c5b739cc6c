"""Inputs that earlier fuzzing kept, and every one that once broke something: none of them breaks anything now."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.targets import TARGETS, seeds

CORPUS = Path(__file__).parent / "corpus"


@pytest.mark.parametrize("name", TARGETS)
def test_seeds_and_kept_inputs(name: str):
    kept = [path.read_bytes() for path in sorted((CORPUS / name).iterdir())]
    assert seeds(name) and kept
    for data in seeds(name) + kept:
        TARGETS[name](data)
