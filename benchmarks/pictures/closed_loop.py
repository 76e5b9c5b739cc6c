"""Pictures of success: by mode, object speed and device; against delay; and on Meta-World's tasks."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from benchmarks.closed_loop.grid import ORIN, RTX5090
from edgeflow.lab.demo.evaluation import THIS_MACHINE
from edgeflow_client.loadtest.drawing import Share, figure_of, limit_line, not_run, save, share_bars
from edgeflow_client.loadtest.palette import BLUE, GREEN, GREY, INK, MODES, ORANGE, VERMILION, mode_colour

Row = Mapping[str, Any]
DEVICES = {
    RTX5090: "pass times of an RTX 5090, emulated",
    ORIN: "pass times of an AGX Orin, emulated",
    THIS_MACHINE: "this machine's own pass times",
}
MOTIONS = {"present pose": VERMILION, "anchored": BLUE, "look-ahead": GREEN, "look-ahead, one step's limits": ORANGE}
"""Poses to which an action's displacement is applied on Meta-World, by name."""


def draw_success(path: Path, report: Mapping[str, Any]) -> None:
    """Draw success with its 95 % interval; one panel per device, one group per speed, one bar per mode.

    Rows of injected delays, of other policies and of unanchored actions are left out.
    """
    rows = [
        row for row in report["conditions"] if row["anchored"] and row["policy"] == "demo" and "delay_ms" not in row
    ]
    devices = [name for name in DEVICES if any(row["profile"] == name for row in rows)]
    speeds = {name: sorted({row["speed_cm_s"] for row in rows if row["profile"] == name}) for name in devices}
    modes = [name for name in MODES if any(row["mode"] == name for row in rows)]
    most = max(map(len, speeds.values()))
    figure = figure_of(
        13.0,
        2.9 * len(devices) + 1.2,
        f"Success of the embedded policy in closed loop, camera {report['frame_hz']:g} Hz, 95 % intervals\n"
        "under each bar: actions per second, and their mean age",
    )
    grid = figure.add_gridspec(len(devices), most)
    for index, device in enumerate(devices):
        axes = figure.add_subplot(grid[index, : len(speeds[device])])
        _success(axes, [row for row in rows if row["profile"] == device], speeds[device], modes)
        axes.set_title(DEVICES[device], fontsize=10)
    patches = [Patch(color=mode_colour(mode), label=mode) for mode in modes]
    figure.legend(handles=patches, loc="outside lower center", ncols=len(modes), fontsize=9)
    save(figure, path)


def _success(axes: Axes, rows: Sequence[Row], speeds: Sequence[float], modes: Sequence[str]) -> None:
    """One device."""
    found = {(row["speed_cm_s"], row["mode"]): row for row in rows}
    for place, row in draw_groups(axes, found, speeds, {mode: mode_colour(mode) for mode in modes}):
        age = "no action" if row["age_mean_ms"] is None else f"{row['age_mean_ms']:.0f} ms"
        axes.annotate(
            f"{row['fps']:.1f}/s\n{age}", (place, 0), (0, -3), textcoords="offset points", ha="center", va="top",
            fontsize=6.5,
        )  # fmt: skip
    axes.set_xticks(
        range(len(speeds)), [f"objects at {speed:g} cm/s" if speed else "still objects" for speed in speeds]
    )
    axes.tick_params("x", length=0, pad=26)
    axes.set_xlim(-0.5, len(speeds) - 0.5)
    axes.set_ylabel("success, %")


def draw_groups(
    axes: Axes, found: Mapping[tuple[Any, str], Row], groups: Sequence[Any], colours: Mapping[str, str]
) -> list[tuple[float, Row]]:
    """Draw the success of each name in each group; what was not run leaves a marked gap. Returns the places of bars."""
    drawn, width = [], 0.86 / len(colours)
    axes.set_ylim(0, 112)
    for (group, key), (index, name) in itertools.product(enumerate(groups), enumerate(colours)):
        place = group + (index - (len(colours) - 1) / 2) * width
        if (row := found.get((key, name))) is None:
            not_run(axes, place, 0.94 * width)
        else:
            share_bars(axes, [place], [_share(row)], 0.94 * width, colours[name])
            drawn.append((place, row))
    return drawn


def _share(row: Row) -> Share:
    low, high = row["interval_95"]
    return row["successes"] / row["episodes"], low, high


def draw_delays(path: Path, report: Mapping[str, Any]) -> None:
    """Draw success against delay, and what each mode makes of time: age of the command in force, reaction, ticks."""
    rows = report["conditions"]
    shown = [row for row in rows if row["profile"] == RTX5090]
    figure = figure_of(
        12.0, 8.4, f"Delay in closed loop: objects at {rows[0]['speed_cm_s']:g} cm/s, {DEVICES[RTX5090]}"
    )
    panels = figure.subplots(2, 2)
    _draw_against_age(panels[0, 0], shown, [row for row in rows if "delay_ms" in row])
    _draw_ticks(panels[0, 1], shown)
    percents = report["percents"]
    _draw_shares(panels[1, 0], shown, percents, "age_in_force_ms", "age of the command in execution, ms")
    _draw_shares(panels[1, 1], shown, percents, "reaction_ms", "from an event to the first action that knows it, ms")
    lines = [Line2D([], [], color=mode_colour(row["mode"]), linewidth=3, label=row["mode"]) for row in shown]
    figure.legend(handles=lines, loc="outside lower center", ncols=len(lines))
    save(figure, path)


def _draw_against_age(axes: Axes, modes: Sequence[Row], injected: Sequence[Row]) -> None:
    """Success against mean age: injected delays as a line and a square, modes as points, with 95 % intervals."""
    fixed, jittered = ([row for row in injected if (row["jitter_ms"] > 0) == each] for each in (False, True))
    _points(axes, fixed, color=GREY, linestyle="-", marker=".", label="injected delay")
    _points(axes, jittered, color=GREY, linestyle="", marker="s", label="injected, jittered")
    for row in modes:
        _points(axes, [row], color=mode_colour(row["mode"]), marker="o", markersize=7, linestyle="")
    axes.set_ylim(-4, 104)
    axes.set_xlim(left=-10)
    axes.set_xlabel("mean age of actions on arrival, ms")
    axes.set_ylabel("success, %")
    axes.set_title("success against age", fontsize=10)
    axes.legend(fontsize=8, loc="lower left")


def _points(axes: Axes, rows: Sequence[Row], **style: Any) -> None:
    acted = [row for row in rows if row["age_mean_ms"] is not None]
    shares = [[100 * each for each in _share(row)] for row in acted]
    errors = [[share - low for share, low, _ in shares], [high - share for share, _, high in shares]]
    heights = [share for share, _, _ in shares]
    axes.errorbar([row["age_mean_ms"] for row in acted], heights, yerr=errors, capsize=2, linewidth=1, **style)


def _draw_shares(axes: Axes, rows: Sequence[Row], percents: Sequence[float], measure: str, label: str) -> None:
    """A cumulative distribution per mode."""
    for row in rows:
        if row[measure]:
            axes.plot(row[measure], percents, color=mode_colour(row["mode"]), linewidth=1.6)
    axes.set_xlim(left=0)
    axes.set_xlabel(label)
    axes.set_ylabel("of the time, %" if measure == "age_in_force_ms" else "of events, %")
    axes.grid(alpha=0.3)


def _draw_ticks(axes: Axes, rows: Sequence[Row]) -> None:
    """Shares of ticks without a new action, and of actions with unverified tokens."""
    places = range(len(rows))
    repeating, waiting = ([100 * row["ticks"][kind] for row in rows] for kind in ("repeating", "waiting"))
    axes.barh(places, repeating, color=[mode_colour(row["mode"]) for row in rows])
    axes.barh(places, waiting, left=repeating, color="white", edgecolor=INK, hatch="////", linewidth=0.5)
    for place, row in zip(places, rows, strict=True):
        if row["unsettled"]:
            text = f"{100 * row['unsettled']:.0f} % of the actions have unverified tokens"
            axes.text(repeating[place] + waiting[place] + 2, place, text, va="center", fontsize=8)
    axes.set_yticks(places, [row["mode"] for row in rows])
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.set_xlabel("ticks of 50 ms, %")
    axes.set_title("ticks without a new action", fontsize=10)
    kinds = [
        Patch(color=GREY, label="the last action goes on"),
        Patch(fc="white", ec=INK, hatch="////", label="before the first"),
    ]
    axes.legend(handles=kinds, fontsize=8, loc="lower right")


def draw_metaworld(path: Path, report: Mapping[str, Any]) -> None:
    """Draw success of all tasks with its interval, by mode and motion; the line is success without delay."""
    fresh, *others = report["conditions"]
    modes = list(dict.fromkeys((row["mode"], row["age_ms"]) for row in others))
    motions = list(dict.fromkeys(row["motion"] for row in others))
    figure = figure_of(
        3.0 + 1.5 * len(modes),
        4.8,
        f"Success on {len(fresh['tasks'])} Meta-World tasks, {fresh['episodes']} episodes per bar, 95 % intervals\n"
        "under each mode: the age of its actions; colour: what a displacement is applied to",
    )
    axes = figure.subplots()
    width = 0.84 / len(motions)
    for index, motion in enumerate(motions):
        own = [row for row in others if row["motion"] == motion]
        places = [modes.index((row["mode"], row["age_ms"])) + (index - (len(motions) - 1) / 2) * width for row in own]
        share_bars(axes, places, list(map(_share, own)), 0.94 * width, MOTIONS.get(motion, GREY), motion)
    limit_line(axes, 100 * _share(fresh)[0], f"without delay: {100 * _share(fresh)[0]:.3g} %")
    axes.set_xticks(range(len(modes)), [f"{mode}\n{age:.0f} ms" for mode, age in modes])
    axes.set_ylabel("success, %")
    figure.legend(loc="outside lower center", ncols=len(motions) + 1)
    save(figure, path)
