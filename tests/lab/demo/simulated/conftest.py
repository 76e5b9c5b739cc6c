"""What tests of simulated robots share."""

from __future__ import annotations

import numpy as np
import pytest

from edgeflow.lab.demo.world.scene import Scene


@pytest.fixture
def blind(monkeypatch):
    """Frames are not drawn: the policy does not look at them."""
    monkeypatch.setattr(
        Scene, "picture", lambda _scene, _moment, _camera, width, height: np.zeros((height, width, 3), np.uint8)
    )
