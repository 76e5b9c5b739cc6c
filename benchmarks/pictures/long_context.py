"""Pictures of what is kept of long prompts: exact answers by system and kind of question, and times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from benchmarks.long_context.cells import EVIDENCE, NO_LINES, Where
from edgeflow.lab.demo.recording import wilson
from edgeflow_client.loadtest.drawing import Share, figure_of, not_run, save, share_bars
from edgeflow_client.loadtest.palette import CYCLE

Row = Mapping[str, Any]
FULL: Final = "full attention"
FOLDED: Final = "EdgeInfinite"
COMPARED: Final = (FULL, "sink + window", "SnapKV-style", FOLDED)
"""By lines of evidence."""
SYSTEMS: Final = dict(
    zip((*COMPARED, *(f"{FOLDED}, {variant}" for variant in ("untrained", "no sink", "window 1"))), CYCLE, strict=True)
)
ACROSS: Final = 4
"""Panels in a row."""


def draw_answers(path: Path, report: Mapping[str, Any]) -> None:
    """Draw exact answers: a panel for each kind and place, and one by lines of evidence, for each length of prompts."""
    rows = report["rows"]
    bands = list(dict.fromkeys(cell["band"] for row in rows for cell in row["cells"]))
    panels = {band: list(_panels(next(_of_band(row, band) for row in rows if _of_band(row, band)))) for band in bands}
    height = -(-(len(panels[bands[0]]) + 2) // ACROSS)
    figure = figure_of(
        13.5,
        3.4 * height * len(bands) + 0.4,
        "Questions about logs of robots, prompts of " + " and ".join(bands) + ": exact answers, 95 % intervals\n"
        "what is kept of a prompt: all of it (full attention), or as much as fits a small slot (the others)",
    )
    axes = list(figure.subplots(height * len(bands), ACROSS, squeeze=False).flat)
    for index, band in enumerate(bands):
        own = axes[index * height * ACROSS : (index + 1) * height * ACROSS]
        for each, panel in zip(own, panels[band], strict=False):
            _bars(each, rows, band, *panel)
        _by_evidence(own[len(panels[band])], rows, band)
        for each in own[len(panels[band]) + 1 :]:
            each.set_axis_off()
    handles = [Patch(color=colour, label=name) for name, colour in SYSTEMS.items()]
    axes[-1].legend(handles=handles, loc="center")
    save(figure, path)


def _of_band(row: Row, band: str) -> list[Row]:
    return [cell for cell in row["cells"] if cell["band"] == band]


def _panels(cells: Sequence[Row]) -> list[tuple[Row, str]]:
    """The cells of a band, each with the family of questions that is shown; "" for all of them."""
    found = []
    for cell in cells:
        families = list(cell["evidence_lines"]) if _decides(cell) else []
        found += [(cell, name) for name in (*families, "")]
    return found


def _decides(cell: Row) -> bool:
    return bool(cell["summary"]) and cell["where"] == Where.COMPRESSED


def _bars(axes: Axes, rows: Sequence[Row], band: str, cell: Row, family: str) -> None:
    """One bar per system; those that cannot read prompts of this length were not run."""
    asked = 0
    axes.set_ylim(0, 112)
    for place, (name, colour) in enumerate(SYSTEMS.items()):
        same = [
            each
            for row in rows
            if row["system"] == name
            for each in _of_band(row, band)
            if (each["where"], each["summary"]) == (cell["where"], cell["summary"])
        ]
        if not same:
            not_run(axes, place, 0.8)
            continue
        counts = [count for kind, count in same[0]["kinds"].items() if kind.startswith(family)]
        right, asked = (sum(each) for each in zip(*counts, strict=True))
        share_bars(axes, [place], [_share(right, asked)], 0.8, colour)
    what = "summaries" if cell["summary"] else "look-ups"
    kind = f"{what}: {family}" if family else what
    axes.set_title(f"{kind}; {asked} questions\nevidence in the {cell['where']}", fontsize=9)
    axes.set_xlabel(f"prompts of {band}", fontsize=8)
    axes.set_xticks([])
    axes.set_xlim(-0.6, len(SYSTEMS) - 0.4)
    axes.set_ylabel("exact answers, %")


def _by_evidence(axes: Axes, rows: Sequence[Row], band: str) -> None:
    groups = [each for each in EVIDENCE if each != NO_LINES]
    for index, name in enumerate(COMPARED):
        cells = [cell for row in rows if row["system"] == name for cell in _of_band(row, band) if _decides(cell)]
        for cell in cells:
            counts = [[families[group] for families in cell["evidence_lines"].values()] for group in groups]
            shares = [_share(*(sum(each) for each in zip(*pairs, strict=True))) for pairs in counts]
            places = [place + 0.07 * (index - 1.5) for place in range(len(groups))]
            heights = [100 * share for share, _, _ in shares]
            errors = [
                [100 * (share - low) for share, low, _ in shares],
                [100 * (high - share) for share, _, high in shares],
            ]
            axes.errorbar(places, heights, yerr=errors, fmt="o-", color=SYSTEMS[name], capsize=3, markersize=4)
    axes.set_xticks(range(len(groups)), groups)
    axes.set_ylim(-4, 112)
    axes.set_xlabel(f"lines that an answer rests on, prompts of {band}", fontsize=8)
    axes.set_ylabel("exact answers, %")
    axes.set_title("summaries by lines of evidence", fontsize=9)


def _share(right: int, asked: int) -> Share:
    found = wilson(right, asked)
    return found.value, found.low, found.high


def draw_speed(path: Path, report: Mapping[str, Any]) -> None:
    """Draw first token, time per token and size of a slot over the length of the prompt."""
    options = report["options"]
    figure = figure_of(
        12.0,
        4.2,
        f"A long prompt with full attention and folded: {options['size']} in {options['dtype']}, random weights, "
        f"{report['threads']} threads, {report['cpu']}",
    )
    panels = {"first_token_s": "time to the first token, s", "token_ms": "time per token, ms", "slot_mib": "slot, MiB"}
    axes = figure.subplots(1, len(panels))
    systems = list(dict.fromkeys(each["system"] for each in report["measured"]))
    for axis, (name, label) in zip(axes, panels.items(), strict=True):
        for system in systems:
            own = [each for each in report["measured"] if each["system"] == system]
            colour = SYSTEMS.get(system, SYSTEMS[FOLDED])
            axis.plot([each["length"] for each in own], [each[name] for each in own], "o-", color=colour, label=system)
        axis.set(xlabel="tokens of the prompt", ylabel=label)
        axis.set_ylim(bottom=0)
        axis.set_xlim(left=0)
        axis.grid(alpha=0.3)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(systems))
    save(figure, path)
