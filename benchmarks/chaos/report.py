"""Command line and report of a scenario."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.chaos.rules import BoundedFigure
from benchmarks.command import keep, machine_facts, options
from edgeflow.console import progress_bar
from edgeflow_client.loadtest.terminal import table_console


def parser(description: str | None, trials: int) -> argparse.ArgumentParser:
    """A parser with the options common to all scenarios."""
    made = options(description)
    made.add_argument("--trials", type=int, default=trials)
    made.add_argument("--seed", type=int, default=0)
    return made


def progress() -> Progress:
    """A progress bar on standard error."""
    return progress_bar(Console(stderr=True))


class ScenarioReport:
    """The report of a scenario; create it first, so that it records the machine's load before the run."""

    def __init__(self, scenario: str, arguments: argparse.Namespace) -> None:
        self._scenario = scenario
        self._path: Path | None = arguments.json
        options = {key: str(value) for key, value in vars(arguments).items() if key != "json"}
        self._head: dict[str, object] = {"scenario": scenario, **machine_facts(), "options": options}

    def finish(self, rows: Sequence[BoundedFigure], **samples: object) -> int:
        """Print the table and write the file; return 1 when a target is missed."""
        table = Table("figure", "value", "target", "", title=f"{self._scenario}, load {os.getloadavg()[0]:.1f}")
        for row in rows:
            verdict = "" if row.bar is None else "[green]met[/]" if row.met else "[red]NOT MET[/]"
            bar = "" if row.bar is None else f"≤ {row.bar:g} {row.unit}"
            table.add_row(row.what, f"{row.value:.4g} {row.unit}", bar, verdict)
        table_console().print(table)
        figures = [{**asdict(row), "met": row.met} for row in rows]
        keep(self._path, {**self._head, "figures": figures, "samples": samples})
        return 0 if all(row.met for row in rows) else 1
