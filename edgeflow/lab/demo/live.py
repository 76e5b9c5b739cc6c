"""Shows a run as it happens: a table that refreshes on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import TracebackType
from typing import Final

from rich.console import Console
from rich.live import Live

from edgeflow.lab.demo.driver import Progress
from edgeflow_client.loadtest.terminal import FoldingTable
from edgeflow_client.types import Mode

_LINE_EVERY_S: Final = 5.0


class RunView:
    """Context manager that shows the progress of one mode after the other."""

    def __init__(self, console: Console, modes: Sequence[Mode], title: str) -> None:
        self._console = console
        self._title = title
        self._latest: dict[Mode, Progress | None] = dict.fromkeys(modes)
        self._live = Live(self._table(), console=console, auto_refresh=False) if console.is_terminal else None
        self._next_line_s = _LINE_EVERY_S

    def __enter__(self) -> RunView:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def __call__(self, progress: Progress) -> None:
        """Show the latest state of a run."""
        if self._latest.get(progress.mode) is None:
            self._next_line_s = _LINE_EVERY_S
        self._latest[progress.mode] = progress
        if self._live is not None:
            self._live.update(self._table(), refresh=True)
        elif progress.summary.seconds >= self._next_line_s:
            self._next_line_s = progress.summary.seconds + _LINE_EVERY_S
            self._console.print("  ".join(_cells(progress.mode, progress)), highlight=False)

    def _table(self) -> FoldingTable:
        table = FoldingTable("mode", "time", "FPS", "age p50", "age p99", "success so far", title=self._title)
        for mode, progress in self._latest.items():
            table.add_row(*_cells(mode, progress))
        return table


def _cells(mode: Mode, progress: Progress | None) -> tuple[str, ...]:
    if progress is None:
        return (mode.value, "-", "-", "-", "-", "-")
    summary = progress.summary
    ages = (f"{age:.0f} ms" if math.isfinite(age) else "-" for age in (summary.age_ms.p50, summary.age_ms.p99))
    done = f"{progress.successes} of {progress.episodes}"
    return (mode.value, f"{summary.seconds:.0f} s", f"{summary.fps:.1f} FPS", *ages, done)
