"""The plot of two models' actions over a recording."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from edgeflow.lab.recordings.compare import ComparedSession
from edgeflow_client.loadtest.drawing import figure_of, save
from edgeflow_client.loadtest.palette import BLUE, GREY, VERMILION
from edgeflow_client.types import ActionSchema

MOST_SESSIONS, MOST_DIMENSIONS = 4, 16
_WIDTH, _HEIGHT = 6.0, 1.5  # inches of a panel
STYLES = ((BLUE, "-"), (VERMILION, "--"))
"""Colour and line of each model."""


def draw_comparison(path: Path, sessions: Sequence[ComparedSession], schema: ActionSchema, names: Sequence[str]) -> str:
    """Write a PNG file: a panel per dimension, a column per session, the first row of each answer over time.

    Returns what was left out, in words; "" if nothing was.
    """
    drawn = [each for each in sessions if each.seconds][:MOST_SESSIONS]
    dims = min(len(schema.names), MOST_DIMENSIONS)
    title = f"Actions of {names[0]} and {names[1]}: the first row of each answer"
    figure = figure_of(_WIDTH * len(drawn), _HEIGHT * dims + 1.0, title)
    panels = figure.subplots(dims, len(drawn), squeeze=False, sharex="col", sharey="row")
    for column, session in enumerate(drawn):
        for dim in range(dims):
            axes = panels[dim][column]
            _draw_dimension(axes, session, dim, names)
            if not column:
                axes.set_ylabel(f"{schema.names[dim]}, {schema.units[dim]}".rstrip(", "), fontsize=8)
        panels[0][column].set_title(f"session {session.label}", fontsize=9)
        panels[-1][column].set_xlabel("time, s")
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    save(figure, path)
    left = [f"{len(sessions) - len(drawn)} sessions" if len(sessions) > len(drawn) else ""]
    left.append(f"{len(schema.names) - dims} dimensions" if len(schema.names) > dims else "")
    return " and ".join(filter(None, left))


def _draw_dimension(axes: Axes, session: ComparedSession, dim: int, names: Sequence[str]) -> None:
    recorded = np.stack(session.recorded_actions)[:, dim]
    if not np.isnan(recorded).all():
        axes.plot(session.seconds, recorded, ".", color=GREY, markersize=3, label="recorded")
    for (colour, line), name, actions in zip(STYLES, names, session.actions, strict=True):
        axes.plot(session.seconds, np.stack(actions)[:, dim], line, color=colour, linewidth=1, label=name)
    axes.tick_params(labelsize=7)
