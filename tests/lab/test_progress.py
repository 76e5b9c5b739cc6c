"""A bar never stands still."""

from __future__ import annotations

import io

from rich.console import Console
from rich.progress import Progress

from edgeflow import console as module
from edgeflow.console import progress_bar
from edgeflow.lab.progress import reporting


def test_the_time_of_a_later_part_advances(monkeypatch):
    bars: list[Progress] = []

    def kept(console: Console) -> Progress:
        bars.append(progress_bar(console))
        return bars[0]

    monkeypatch.setattr(module, "progress_bar", kept)
    with reporting(Console(file=io.StringIO(), force_terminal=True, width=80)) as report:
        report("files", 1, 1)
        assert bars[0].tasks[0].finished
        report("report", 0, 1)
        assert not bars[0].tasks[0].finished and bars[0].tasks[0].description == "report"
