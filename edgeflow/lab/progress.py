"""Progress of long work, reported by function calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

Report = Callable[[str, int, int], None]


@contextmanager
def reporting(console: Console) -> Iterator[Report]:
    """A progress bar driven by calls of `report(what, done, total)`; the time restarts with each new part."""
    from edgeflow.console import progress_bar  # imported here: it needs rich, which a GPU machine may lack

    with progress_bar(console) as progress:
        task = progress.add_task("", total=None)

        def report(what: str, done: int, total: int) -> None:
            shown = progress.tasks[0]
            if total != shown.total or done < shown.completed:
                progress.reset(task)  # otherwise the time of a finished part stands still
            progress.update(task, description=what, completed=done, total=total)

        yield report
