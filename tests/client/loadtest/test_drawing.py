"""The palette: people with each kind of colour blindness tell its colours apart."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from edgeflow_client.loadtest.drawing import CYCLE, FATES, GREY, MODES, mode_colour

# What people see of linear red, green and blue (Machado, Oliveira and Fernandes, 2009, severity 1).
SIGHT = {
    "all": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "no red": [[0.1523, 1.0526, -0.2049], [0.1145, 0.7863, 0.0992], [-0.0039, -0.0481, 1.0520]],
    "no green": [[0.3673, 0.8606, -0.2280], [0.2801, 0.6725, 0.0474], [-0.0118, 0.0429, 0.9689]],
    "no blue": [[1.2555, -0.0767, -0.1788], [-0.0784, 0.9308, 0.1476], [0.0047, 0.6914, 0.3039]],
}
LEAST = 15.0  # difference in CIELAB; about 2 can just be seen


def lab(colour: str, sight: str) -> np.ndarray:
    """The colour in CIELAB (D65), as someone sees it."""
    rgb = np.array(to_rgb(colour))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    seen = np.clip(np.array(SIGHT[sight]) @ linear, 0, 1)
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ seen
    x, y, z = (np.cbrt(v) if v > 0.008856 else 7.787 * v + 16 / 116 for v in xyz / (0.9505, 1, 1.089))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("sight", SIGHT)
@pytest.mark.parametrize(
    "palette", [CYCLE, tuple(MODES.values()), tuple(FATES.values())], ids=["cycle", "modes", "fates"]
)
def test_any_two_colours_differ(palette, sight):
    for one, other in combinations(palette, 2):
        assert np.linalg.norm(lab(one, sight) - lab(other, sight)) >= LEAST, (one, other)


def test_a_setting_without_a_colour_has_that_of_its_mode():
    assert mode_colour("speculative, 2 passes") == MODES["speculative"]
    assert (mode_colour("pipelined"), mode_colour("depth 3")) == (MODES["pipelined"], GREY)
