"""Terminal output of the commands: phases of the service, progress of long work."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Protocol

from rich.console import Console
from rich.markup import escape
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


class Status(Protocol):
    """The parts of a ServiceStatus (service/observe/status.py) that are printed."""

    @property
    def phase(self) -> str: ...
    @property
    def step(self) -> str: ...
    @property
    def done(self) -> int: ...
    @property
    def total(self) -> int: ...
    @property
    def grpc_address(self) -> str: ...
    @property
    def http_address(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def warnings(self) -> Sequence[str]: ...
    @property
    def chat(self) -> str: ...
    @property
    def operators(self) -> str: ...
    @property
    def memory(self) -> str: ...
    @property
    def forecasts(self) -> Sequence[tuple[str, float, float]]: ...

    @property
    def horizon(self) -> int: ...


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


class Lines(Protocol):
    """Receiver of lines that are written when their reader takes them."""

    def write(self, text: str, /) -> object: ...

    def close(self) -> object: ...


class JsonPrinter:
    """Prints every announcement as a line of JSON."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines

    def __call__(self, status: Any) -> None:
        self._lines.write(f"{json.dumps(asdict(status))}\n")

    def close(self) -> None:
        """Wait for a moment until all is written."""
        self._lines.close()


class ServicePrinter:
    """Prints the start as a progress bar and every later phase as a line."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = progress_bar(console)
        self._task = self._progress.add_task("loading", total=None)
        self._progress.start()

    def __call__(self, status: Status) -> None:
        match str(getattr(status.phase, "value", status.phase)):
            case "starting" | "warming":
                self._progress.update(
                    self._task, description=status.step or "starting", completed=status.done, total=status.total or None
                )
            case "ready":
                self._progress.stop()
                self._console.print(
                    f"[green]ready[/]: {status.model} on {status.device}; "
                    f"gRPC {status.grpc_address}, HTTP {status.http_address}",
                    highlight=False,
                )
                if status.memory:
                    self._console.print(f"  {status.memory}", highlight=False, markup=False)
                if status.chat:
                    self._console.print(f"  chat: {status.chat}", highlight=False, markup=False)
                if status.operators:
                    self._console.print(f"  operators: {status.operators}", highlight=False, markup=False)
                what = "actions" if status.horizon == 1 else f"chunks of {status.horizon} actions"
                for mode, fps, age_ms in status.forecasts:
                    self._console.print(
                        f"  {mode:>9}: one robot alone gets {fps:.1f} {what} per second, {age_ms:.0f} ms old",
                        highlight=False,
                    )
                for warning in status.warnings:
                    self._console.print(f"  [yellow]{escape(warning)}[/]", highlight=False)
            case phase:
                self._progress.stop()
                self._console.print(phase)

    def close(self) -> None:
        """Remove the progress bar."""
        self._progress.stop()
