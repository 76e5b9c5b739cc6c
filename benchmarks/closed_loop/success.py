"""The picture of success by mode, object speed and device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edgeflow_client.loadtest.pictures import figure_of, save

Row = Mapping[str, Any]
PALETTE = ("#3b6fb6", "#6f9bd1", "#b07aa1", "#d1495b", "#2f7d4f", "#6bbf7b", "#b5d99c", "#8a6fae")


def plot_success(path: Path, rows: Sequence[Row]) -> None:
    """Draw success with its 95 % interval; one panel per device, one group per speed, one bar per mode.

    Rows of injected delays, of other policies and of unanchored actions are left out.
    """
    shown = [row for row in rows if row["anchored"] and row.get("policy", "demo") == "demo" and "delay_ms" not in row]
    profiles, modes = (list(dict.fromkeys(row[key] for row in shown)) for key in ("profile", "mode"))
    speeds = sorted({row["speed_cm_s"] for row in shown})
    figure = figure_of(11.0, 2.6 * len(profiles) + 0.6)
    panels = figure.subplots(len(profiles), 1, squeeze=False)[:, 0]
    for axes, profile in zip(panels, profiles, strict=True):
        for row in (row for row in shown if row["profile"] == profile):
            index = modes.index(row["mode"])
            place = speeds.index(row["speed_cm_s"]) + (index - (len(modes) - 1) / 2) * 0.8 / len(modes)
            _bar(axes, place, 0.75 / len(modes), row, PALETTE[index % len(PALETTE)])
        axes.set_xticks(range(len(speeds)), [f"{speed:g} cm/s" if speed else "still objects" for speed in speeds])
        axes.set_xlim(-0.5, len(speeds) - 0.5)
        axes.set_ylim(0, 108)
        axes.set_ylabel("success, %")
        axes.set_title(profile, fontsize=10)
    patches = [panels[0].bar(0, 0, color=PALETTE[index % len(PALETTE)]) for index in range(len(modes))]
    figure.legend(patches, modes, loc="outside lower center", ncols=4, fontsize=8)
    save(figure, path)


def _bar(axes: Any, place: float, width: float, row: Row, colour: str) -> None:
    share, (low, high) = 100 * row["success"], (100 * end for end in row["interval_95"])
    axes.bar(place, share, width, color=colour)
    axes.errorbar(place, share, yerr=[[share - low], [high - share]], color="#333333", capsize=2, linewidth=1)
