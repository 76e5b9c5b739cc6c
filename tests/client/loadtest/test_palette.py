"""The palette: people with each kind of colour blindness tell its colours apart, and the live page has the same."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from edgeflow_client.loadtest.palette import CYCLE, GREY, GROUND, MODES, QUANTITIES, mode_colour
from edgeflow_client.loadtest.robots.ledger import Fate

# What people see of linear red, green and blue (Machado, Oliveira and Fernandes, 2009, severity 1).
SIGHT = {
    "all": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "no red": [[0.1523, 1.0526, -0.2049], [0.1145, 0.7863, 0.0992], [-0.0039, -0.0481, 1.0520]],
    "no green": [[0.3673, 0.8606, -0.2280], [0.2801, 0.6725, 0.0474], [-0.0118, 0.0429, 0.9689]],
    "no blue": [[1.2555, -0.0767, -0.1788], [-0.0784, 0.9308, 0.1476], [0.0047, 0.6914, 0.3039]],
}
LEAST = 15.0  # difference in CIELAB; about 2 can just be seen


TOGETHER = {
    "outcomes": [fate.value for fate in Fate],
    "times": ["latency", "decode", "queue", "inference"],
    "commands": ["acted", "hold", "stop"],
}
"""Quantities that one picture shows."""
PALETTES = {
    "cycle": CYCLE,
    "modes": [*MODES.values()],
    **{name: [QUANTITIES[each] for each in quantities] for name, quantities in TOGETHER.items()},
}
PAGE = Path(__file__).parents[3] / "edgeflow/service/gateway/page/style.css"


def linear(colour: str) -> np.ndarray:
    """Linear red, green and blue."""
    rgb = np.array(to_rgb(colour))
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def lab(colour: str, sight: str) -> np.ndarray:
    """The colour in CIELAB (D65), as someone sees it."""
    seen = np.clip(np.array(SIGHT[sight]) @ linear(colour), 0, 1)
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ seen
    x, y, z = (np.cbrt(v) if v > 0.008856 else 7.787 * v + 16 / 116 for v in xyz / (0.9505, 1, 1.089))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def contrast(one: str, other: str) -> float:
    """The contrast of two colours (WCAG 2)."""
    darker, lighter = sorted(float(linear(colour) @ (0.2126, 0.7152, 0.0722)) for colour in (one, other))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("sight", SIGHT)
@pytest.mark.parametrize("palette", PALETTES.values(), ids=PALETTES)
def test_any_two_colours_of_a_picture_differ(palette, sight):
    for one, other in combinations(palette, 2):
        assert np.linalg.norm(lab(one, sight) - lab(other, sight)) >= LEAST, (one, other)


def test_quantities_stand_out():
    assert {name: colour for name, colour in QUANTITIES.items() if contrast(colour, GROUND) < 3} == {}


def test_the_page_shows_each_quantity_in_its_colour():
    variables = dict(re.findall(r"--([a-z]+): light-dark\((#[0-9a-f]{6}),", PAGE.read_text()))
    shown = {name: colour.upper() for name, colour in variables.items() if name in QUANTITIES}
    assert shown == {name: QUANTITIES[name] for name in shown} and shown.keys() >= {*TOGETHER["commands"], "latency"}


def test_a_setting_without_a_colour_has_that_of_its_mode():
    assert mode_colour("speculative, 2 passes") == MODES["speculative"]
    assert (mode_colour("pipelined"), mode_colour("depth 3")) == (MODES["pipelined"], GREY)
