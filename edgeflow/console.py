"""Progress of long work on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

Report = Callable[[str, int, int], None]


def progress_bar(console: Console) -> Progress:
    """The progress bar of all long work; shown on terminals only."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    return Progress(*columns, TimeRemainingColumn(), console=console, transient=True, disable=not console.is_terminal)


@contextmanager
def reporting(console: Console) -> Iterator[Report]:
    """A progress bar driven by calls of `report(what, done, total)`; the time restarts where another part begins."""
    with progress_bar(console) as progress:
        task = progress.add_task("", total=None)

        def report(what: str, done: int, total: int) -> None:
            shown = progress.tasks[0]
            if total != shown.total or done < shown.completed:
                progress.reset(task)  # else the time of a finished part stands still
            progress.update(task, description=what, completed=done, total=total)

        yield report
