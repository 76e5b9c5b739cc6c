"""Two pictures: success by mode, object speed and device; and five figures of how a service feels to a robot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.lines import Line2D

from benchmarks.closed_loop.grid import ORIN, RTX5090
from benchmarks.closed_loop.measures import PERCENTS
from edgeflow_client.loadtest.pictures import figure_of, save

Row = Mapping[str, Any]
PALETTE = ("#3b6fb6", "#6f9bd1", "#b07aa1", "#d1495b", "#2f7d4f", "#6bbf7b", "#b5d99c", "#8a6fae")
_MARKERS = {RTX5090: "o", ORIN: "s"}


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


def plot_figures(path: Path, rows: Sequence[Row]) -> None:
    """Draw the rows of one object speed; all but success against delay at the pass times of one device."""
    shown = [row for row in rows if row["profile"] == RTX5090]
    figure = figure_of(15.0, 8.4)
    panels = figure.subplots(2, 3)
    _draw_success(panels[0, 0], rows)
    _draw_shares(panels[0, 1], shown, "age_in_force_ms", "age of the command in force, ms")
    _draw_shares(panels[0, 2], shown, "reaction_ms", "from an event to the first action that knows it, ms")
    _draw_ticks(panels[1, 0], shown)
    _draw_shares(panels[1, 1], shown, "jump_mm", "jump of the commanded position at an action, mm")
    _draw_shares(panels[1, 2], shown, "kick_mm_s", "jump of the commanded velocity at an action, mm/s")
    lines = [Line2D([], [], color=colour, label=row["mode"]) for colour, row in zip(PALETTE, shown, strict=False)]
    figure.legend(handles=lines, loc="outside lower center", ncols=len(lines))
    figure.suptitle(f"objects at {rows[0]['speed_cm_s']:g} cm/s, pass times of {RTX5090}", fontsize=11)
    save(figure, path)


def _draw_success(axes: Any, rows: Sequence[Row]) -> None:
    """Success against mean age: injected delays as lines, modes as points, with 95 % intervals."""
    injected = [row for row in rows if "delay_ms" in row]
    for jittered, style, label in ((False, "-", "fixed delay"), (True, "--", "jittered delay")):
        line = [row for row in injected if (row["jitter_ms"] > 0) == jittered]
        _points(axes, line, color="#777777", linestyle=style, label=label)
    for profile, marker in _MARKERS.items():
        axes.plot([], [], marker, color="#333333", label=f"modes, {profile}")
        for colour, row in zip(PALETTE, (row for row in rows if row["profile"] == profile), strict=False):
            _points(axes, [row], color=colour, marker=marker, linestyle="", alpha=0.85)
    axes.set_xscale("symlog", linthresh=100)
    axes.set_xticks([0, 50, 100, 200, 400, 1000, 2000], ["0", "50", "100", "200", "400", "1000", "2000"])
    axes.set_ylim(-4, 104)
    axes.set_xlabel("mean age of actions at arrival, ms")
    axes.set_ylabel("success, %")
    axes.legend(fontsize=7)


def _points(axes: Any, rows: Sequence[Row], **style: Any) -> None:
    acted = [row for row in rows if row["age_mean_ms"] is not None]
    shares = [100 * row["success"] for row in acted]
    low = [share - 100 * row["interval_95"][0] for share, row in zip(shares, acted, strict=True)]
    high = [100 * row["interval_95"][1] - share for share, row in zip(shares, acted, strict=True)]
    axes.errorbar([row["age_mean_ms"] for row in acted], shares, yerr=[low, high], capsize=2, linewidth=1, **style)


def _draw_shares(axes: Any, rows: Sequence[Row], measure: str, label: str) -> None:
    """A cumulative distribution per mode."""
    for colour, row in zip(PALETTE, rows, strict=False):
        if row[measure]:
            axes.plot(row[measure], PERCENTS, color=colour, linewidth=1.4)
    axes.set_xlim(left=0)
    axes.set_xlabel(label)
    axes.set_ylabel("share, %")
    axes.grid(alpha=0.3)


def _draw_ticks(axes: Any, rows: Sequence[Row]) -> None:
    """Shares of ticks without a new action, and of actions that are not verified."""
    modes = [row["mode"] for row in rows]
    repeating, waiting = ([100 * row["ticks"][kind] for row in rows] for kind in ("repeating", "waiting"))
    axes.barh(modes, repeating, color="#9aa5b1", label="repeat the last action")
    axes.barh(modes, waiting, left=repeating, color="#4d5560", label="wait for the first")
    axes.plot(
        [100 * row["unsettled"] for row in rows], modes, "D", color="#e0a030", label="actions with unsettled tokens"
    )
    axes.invert_yaxis()
    axes.set_xlim(-2, 102)
    axes.set_xlabel("ticks of 50 ms without a new action, %")
    axes.legend(fontsize=7)
