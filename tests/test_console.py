"""Output of the commands in a terminal of 80 columns: nothing is cut."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import click
import typer
from rich.console import Console
from typer.testing import CliRunner

from edgeflow import console as module
from edgeflow.cli import app
from edgeflow_client.loadtest import terminal
from edgeflow_client.loadtest.terminal import FoldingTable

PACKAGE, CLIENT = Path(module.__file__).parent, Path(terminal.__file__).parents[1]


def commands(group: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    for name, command in getattr(group, "commands", {}).items():
        yield from commands(command, (*path, name))


def test_no_help_text_is_cut():
    for path in commands(typer.main.get_command(app)):
        shown = click.unstyle(CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": "80"}).output)
        assert "Usage" in shown and "…" not in shown, path
        assert max(map(len, shown.splitlines())) <= 80, path


def test_a_table_is_folded_and_not_cut():
    table = FoldingTable("operator", "shape", "implementation")
    table.add_row("rope_write_kv", "m=512|h=4|kv=4|d=32", "indexed")
    out = io.StringIO()
    Console(file=out, width=30).print(table)
    assert "…" not in out.getvalue()
    cells = [line.split("│")[2] for line in out.getvalue().splitlines() if line.startswith("│")]
    assert "".join(map(str.strip, cells)) == "m=512|h=4|kv=4|d=32"


def test_texts_of_robots_and_files_cannot_command_the_terminal(capsys):
    table = FoldingTable("\x1b[2J", title="\x9b2J")
    table.add_row("\x1b]0;title\x07 two\nlines")
    terminal.table_console().print(table)
    assert not set(capsys.readouterr().out) & {*map(chr, terminal.CONTROL)}


def test_every_table_is_a_folding_one():
    sources = [path for top in (PACKAGE, CLIENT) for path in top.rglob("*.py")]
    assert [path for path in sources if "rich.table" in path.read_text()] == [Path(terminal.__file__)]
