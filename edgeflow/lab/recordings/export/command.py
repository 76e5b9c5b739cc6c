"""The implementation of `edgeflow recording export`: from its options to its output."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from edgeflow.lab.progress import reporting
from edgeflow.lab.recordings.export.run import ExportedDataset, export_sessions
from edgeflow.lab.recordings.info import open_recording
from edgeflow_client.loadtest.results import json_text
from edgeflow_client.loadtest.terminal import FoldingTable, table_console


def export_command(
    path: Path, run: str, out: Path, *, fps: int | None, video: bool, chosen: Sequence[str], as_json: bool
) -> None:
    """Export sessions of a recording and print what became of each epoch."""
    recording = open_recording(path, run)
    with reporting(Console(stderr=True)) as report:
        exported = export_sessions(recording, out, fps=fps, video=video, chosen=tuple(chosen), report=report)
    damage = [f"{each.file.name} is read up to byte {each.offset}: {each.text}" for each in recording.damage]
    if as_json:
        print(json_text({**dataclasses.asdict(exported), "damage": damage}))
        return
    console = table_console()
    console.print(_table(exported))
    images = f"{exported.video} videos" if exported.video else "images"
    totals = f"{exported.episodes} episodes with {exported.frames} frames at {exported.fps} per second, {images}"
    console.print(f"wrote {exported.out}: {totals}", markup=False, highlight=False)
    skipped = sum(not epoch.frames for epoch in exported.epochs)
    if skipped:
        console.print(f"skipped {skipped} epochs without an action to an observation")
    for line in (*exported.notices, *(f"damage: {each}" for each in damage)):
        console.print(line, markup=False, highlight=False)


def _table(exported: ExportedDataset) -> FoldingTable:
    table = FoldingTable("session", "epoch", "episodes", "frames", "ticks left out", "task")
    for epoch in exported.epochs:
        left_out = ", ".join(f"{reason}: {count}" for reason, count in epoch.left_out.items())
        episodes = ", ".join(map(str, epoch.episodes)) or "none"
        row = (epoch.session, str(epoch.epoch), episodes, str(epoch.frames), left_out or "none", epoch.instruction)
        table.add_row(*map(escape, row))
    return table
