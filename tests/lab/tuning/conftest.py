"""Fixtures for tests of the tuner."""

from __future__ import annotations

import pytest

from edgeflow.lab.trials import tune


@pytest.fixture(autouse=True)
def no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Problems are timed on one set of operands: a set per part of a large cache takes seconds to make."""
    monkeypatch.setattr(tune, "last_level_cache", lambda _: 0)
