"""Tables in the terminal."""

from __future__ import annotations

import sys
from typing import Any

from rich.console import Console
from rich.table import Table

WIDE = 140  # columns of tables that go to a file or a pipe


def table_console() -> Console:
    """A console for results on standard output: as wide as the terminal, or WIDE columns elsewhere."""
    return Console(width=None if sys.stdout.isatty() else WIDE)


class FoldingTable(Table):
    """A table that folds what a narrow terminal has no room for; rich would cut it."""

    def __init__(self, *headings: str, **options: Any) -> None:
        super().__init__(*headings, **{"collapse_padding": True, **options})

    def add_column(self, *args: Any, **options: Any) -> None:
        super().add_column(*args, **{"overflow": "fold", **options})
