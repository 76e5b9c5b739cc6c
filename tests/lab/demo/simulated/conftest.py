"""Fixtures for tests of simulated robots."""

from __future__ import annotations

import numpy as np
import pytest

from edgeflow.lab.demo.world.scene import POLICY_SIZE, Scene


@pytest.fixture
def blind(monkeypatch):
    """Frames are not drawn: the policy does not look at them."""
    monkeypatch.setattr(Scene, "picture", lambda *_: np.zeros((POLICY_SIZE, POLICY_SIZE, 3), np.uint8))
