"""Five figures of how a service feels to a robot, in one picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.lines import Line2D

from benchmarks.closed_loop.grid import ORIN, RTX5090
from benchmarks.closed_loop.measures import PERCENTS
from benchmarks.closed_loop.success import PALETTE
from edgeflow_client.loadtest.pictures import figure_of, save

Row = Mapping[str, Any]
_MARKERS = {RTX5090: "o", ORIN: "s"}


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
    """Shares of ticks without a new action, and of actions that are not settled."""
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
