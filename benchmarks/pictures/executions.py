"""The picture of the executions: success on each device, a chart for each speed of the objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from benchmarks.pictures.closed_loop import Row, draw_groups
from edgeflow_client.loadtest.drawing import figure_of, save
from edgeflow_client.loadtest.palette import BLUE, GREEN, ORANGE, SKY

EXECUTIONS: Final = {"auto": GREEN, "continue": BLUE, "rest": ORANGE, "fresh": SKY}
"""The colour of each execution."""
EVERYWHERE: Final = tuple(EXECUTIONS)[:3]
"""Executions whose gaps are marked; `fresh` is measured at some speeds only."""


def draw_executions(path: Path, report: Mapping[str, Any]) -> None:
    """Draw success with its 95 % interval; one chart per speed, one group per device, one bar per execution."""
    rows = [row for row in report["conditions"] if not row["jump_cm"]]
    speeds = sorted({row["speed_cm_s"] for row in rows})
    devices = sorted({(row["chunk_ms"], row["profile"]) for row in rows})
    across = min(len(speeds), 2)
    figure = figure_of(
        6.6 * across,
        2.9 * -(-len(speeds) // across) + 1.0,
        f"Success of {report['model']} by execution, camera {report['frame_hz']:g} Hz, 95 % intervals\n"
        "devices by the time of a chunk there, emulated",
    )
    panels = figure.subplots(-(-len(speeds) // across), across, squeeze=False).flat
    for axes, speed in zip(panels, speeds, strict=False):
        _draw_speed(axes, [row for row in rows if row["speed_cm_s"] == speed], devices)
        axes.set_title(f"objects at {speed:g} cm/s" if speed else "still objects", fontsize=10)
    for axes in list(panels)[len(speeds) :]:
        axes.set_axis_off()
    shown = [name for name in EXECUTIONS if any(row["execution"] == name for row in rows)]
    patches = [Patch(color=EXECUTIONS[name], label=name) for name in shown]
    figure.legend(handles=patches, loc="outside lower center", ncols=len(patches))
    save(figure, path)


def _draw_speed(axes: Axes, rows: Sequence[Row], devices: Sequence[tuple[float, str]]) -> None:
    """One chart."""
    found = {(row["profile"], row["execution"]): row for row in rows}
    here = {row["execution"] for row in rows}.union(EVERYWHERE)
    colours = {name: colour for name, colour in EXECUTIONS.items() if name in here}
    draw_groups(axes, found, [device for _, device in devices], colours)
    axes.set_xticks(range(len(devices)), [f"{device}\n{chunk_ms:.0f} ms" for chunk_ms, device in devices], fontsize=8)
    axes.set_xlim(-0.5, len(devices) - 0.5)
    axes.set_ylabel("success, %")
