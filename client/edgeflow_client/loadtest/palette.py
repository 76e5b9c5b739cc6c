"""The colours of the project's pictures: one per quantity, per mode, and per thing of a single plot.

The load test, the demonstration, the benchmarks and the live page show the same quantity in the same colour. Everything
here is meant for a light ground; the page has its own shades of these for a dark one.
"""

from __future__ import annotations

import re
from typing import Final

GREY: Final = "#8A8A8A"
INK: Final = "#222222"
GROUND: Final = "#FFFFFF"

# Any two of a plot differ for people with each kind of colour blindness, and each stands out from GROUND by 3 to 1.
QUANTITIES: Final = {
    "latency": "#2F6FB2",
    "rate": "#008846",
    "acted": "#008846",
    "hold": "#B26A00",
    "stop": "#A01324",
    "decode": "#7D8B1F",
    "queue": "#B3548F",
    "inference": "#4E3DA6",
    "superseded": "#4598CF",
    "rejected": "#CC4F1A",
    "dropped": "#9C2A7A",
    "unanswered": "#535353",
}
"""Colours of lines, bars and shapes, by quantity: latency and its parts, commands, and outcomes of frames."""

# Okabe and Ito's colours and one of Tol's.
BLUE, VERMILION, GREEN, ORANGE = "#0072B2", "#D55E00", "#009E73", "#E69F00"
SKY, PURPLE, WINE = "#56B4E9", "#CC79A7", "#882255"
CYCLE: Final = (BLUE, VERMILION, GREEN, ORANGE, SKY, PURPLE, WINE)
"""Colours of things that only one plot shows, such as robots."""

MODES: Final = {
    "serial": BLUE,
    "depth 2": SKY,
    "depth 4": PURPLE,
    "pipelined": VERMILION,
    "speculative": GREEN,
    "speculative, 1 bin": ORANGE,
    "speculative, 1 pass": WINE,
}


def mode_colour(name: str) -> str:
    """The colour of a mode; of its kind where the exact setting has none."""
    return MODES.get(name) or MODES.get(re.split("[ ,]", name, maxsplit=1)[0], GREY)


def colours(count: int) -> list[str]:
    """Colours of things that only one plot shows."""
    return [CYCLE[index % len(CYCLE)] for index in range(count)]
