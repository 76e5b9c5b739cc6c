"""Pictures of what passes and processes take: rates over K, times of static graphs, memory of a soak."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.chaos.rules import EARLY, LATE
from edgeflow_client.loadtest.drawing import figure_of, limit_line, save
from edgeflow_client.loadtest.palette import BLUE, GREEN, INK, SKY, mode_colour

MIB = 1 << 20
ENGINES = {"ONNX Runtime, float32": GREEN, "engine, float32": BLUE, "engine, bfloat16": SKY}
CONTROL = "control"


def draw_sweep(path: Path, report: Mapping[str, Any]) -> None:
    """Draw serial and pipelined rate over the number of action tokens, one panel per prompt length."""
    cells = report["cells"]
    lengths = sorted({cell["prefill_rows"] for cell in cells})
    figure = figure_of(
        3.4 * len(lengths),
        4.0,
        f"Actions per second by K, the tokens of an action: {report['threads']} threads, {report['cpu']}\n"
        "at each pair: pipelined over serial; line: what the pass times of the cell allow",
    )
    panels = figure.subplots(1, len(lengths), sharey=True, squeeze=False)[0]
    for axes, rows in zip(panels, lengths, strict=True):
        here = [cell for cell in cells if cell["prefill_rows"] == rows]
        places = np.arange(len(here))
        serial, pipelined = ([cell[f"{mode}_fps"] for cell in here] for mode in ("serial", "pipelined"))
        bounds = [cell["serial_fps"] * cell["bound"] for cell in here]
        axes.bar(places - 0.2, serial, 0.4, color=mode_colour("serial"), label="serial")
        axes.bar(places + 0.2, pipelined, 0.4, color=mode_colour("pipelined"), label="pipelined")
        axes.hlines(bounds, places, places + 0.4, color=INK, linewidth=1.5, label="allowed by pass times")
        for place, cell, bound in zip(places, here, bounds, strict=True):
            above = max(bound, cell["pipelined_fps"])
            text = f"{cell['ratio']:.1f}x"
            axes.annotate(text, (place + 0.2, above), (0, 2), textcoords="offset points", ha="center", fontsize=8)
        axes.set_xticks(places, [f"K={cell['action_tokens']}" for cell in here])
        axes.set_title(f"prefill of {rows} rows", fontsize=10)
        axes.margins(y=0.1)
    panels[0].set_ylabel("actions per second")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    save(figure, path)


def draw_static_graphs(path: Path, report: Mapping[str, Any]) -> None:
    """Draw the medians by shape, prefill and step, with the least that the rates of the machine allow."""
    figure = figure_of(
        13.0,
        5.0,
        f"{report['model']}, median times on {report['cores']} cores of {report['cpu']}\n"
        "line in a bar: the least time at the rates of this machine",
    )
    stages = {"prefill": "prefill, by rows of the prefix", "step": "one denoising step, by rows of prefix/suffix"}
    panels = figure.subplots(1, len(stages))
    for axes, (stage, title) in zip(panels, stages.items(), strict=True):
        rows = [row for row in report["rows"] if row["stage"] == stage]
        shapes = list(dict.fromkeys((row["prefix"], row["suffix"]) for row in rows))
        systems = [name for name in ENGINES if any(row["system"] == name for row in rows)]
        width = 0.84 / len(systems)
        for index, system in enumerate(systems):
            own = [row for row in rows if row["system"] == system]
            places = [
                shapes.index((row["prefix"], row["suffix"])) + (index - (len(systems) - 1) / 2) * width for row in own
            ]
            axes.bar(places, [row["ms"]["median"] for row in own], 0.94 * width, color=ENGINES[system], label=system)
            left, right = (np.array(places) + side * 0.47 * width for side in (-1, 1))
            axes.hlines([row["floor_ms"] for row in own], left, right, color=INK, linewidth=1.5)
        names = [str(prefix) if stage == "prefill" else f"{prefix}/{suffix}" for prefix, suffix in shapes]
        axes.set_xticks(range(len(shapes)), names)
        axes.set_title(title, fontsize=10)
        axes.set_ylabel("ms")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(ENGINES))
    save(figure, path)


def draw_soak(path: Path, report: Mapping[str, Any]) -> None:
    """Plot resident memory over frames, one panel per process, with the windows that are compared and the limit."""
    series = {CONTROL if name == "front" else name: each for name, each in report["samples"].items()}
    options = report["options"]
    figure = figure_of(
        9.0,
        2.9 * len(series) + 0.8,
        f"Resident memory of each process: {options['robots']} robots at {float(options['rate']):g} frames per second\n"
        "grey: the two windows compared; the second may exceed the first by 1 %",
    )
    panels = figure.subplots(len(series), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (name, samples) in zip(panels, series.items(), strict=True):
        frames, resident = (np.array([sample[key] for sample in samples], np.float64) for key in ("frames", "resident"))
        resident /= MIB
        axes.plot(frames / 1000, resident, color=BLUE)
        for low, high in (EARLY, LATE):
            axes.axvspan(low * frames[-1] / 1000, high * frames[-1] / 1000, color=INK, alpha=0.1, linewidth=0)
        early = np.median(resident[(frames >= EARLY[0] * frames[-1]) & (frames <= EARLY[1] * frames[-1])])
        limit_line(axes, 1.01 * float(early), "limit")
        axes.set_ylabel("resident, MiB")
        axes.set_title(name, fontsize=10)
        axes.grid(alpha=0.3)
        axes.legend(loc="lower right")
    panels[-1].set_xlabel("thousand frames answered")
    save(figure, path)
