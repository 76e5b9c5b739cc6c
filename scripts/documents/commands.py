"""docs/reference/commands.md: every command with its arguments and options, from the command line itself."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

import typer

from edgeflow.cli import app
from edgeflow.commands.laboratory import COMMANDS, loaded
from scripts.documents.tables import inline, table

HEAD = """# Commands

`edgeflow --help` lists the commands, `edgeflow COMMAND --help` shows this page's entry for one of them, and
`edgeflow --version` prints the version. With the client only, as on a robot's computer, `edgeflow loadtest` is
`edgeflow-loadtest`. `serve --set KEY=VALUE` accepts every key of the [configuration](configuration.md).

A command that cannot start prints one line that says why, and exits with code 2.

"""
LAB = """What trains, converts, proves and measures models. An installation without the folder `edgeflow/lab`
lacks these commands.
"""


@dataclass(frozen=True, slots=True)
class Option:
    """An option, or an argument."""

    names: tuple[str, ...]
    default: str
    meaning: str
    required: bool


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """One command. name: with that of its group."""

    name: str
    text: str
    options: tuple[Option, ...]


def commands() -> tuple[list[CommandEntry], list[CommandEntry]]:
    """The everyday commands, and those of the laboratory."""
    lab = {line.name: typer.main.get_command(loaded(line)) for line in COMMANDS}
    rare = {line.name for line in COMMANDS if not line.everyday}
    found = list(_found(typer.main.get_command(app), lab))
    laboratory = [each for each in found if each.name in rare]
    return [each for each in found if each not in laboratory], laboratory


def page() -> str:
    """The page."""
    everyday, laboratory = commands()
    text = HEAD + "## Everyday commands\n\n" + "".join(_entry(each) for each in everyday)
    return text + f"## Laboratory commands\n\n{LAB}\n" + "".join(_entry(each) for each in laboratory)


def _entry(command: CommandEntry) -> str:
    given = [each for each in command.options if not each.names[0].startswith("-")]
    arguments = " ".join(each.names[0] if each.required else f"[{each.names[0]}]" for each in given)
    text = f"### `edgeflow {command.name}`\n\n```text\nedgeflow {command.name} {arguments} [OPTIONS]\n```\n\n"
    text = text.replace("  [", " [")
    paragraphs = inspect.cleandoc(command.text).replace("\b", "").split("\n\n")
    text += "".join(f"{inline(paragraph)}\n\n" for paragraph in paragraphs)
    rows = [
        (", ".join(f"`{name}`" for name in each.names), each.default, inline(each.meaning)) for each in command.options
    ]
    return text + (table(("Option", "Default", "Meaning"), rows) + "\n" if rows else "")


def _found(group: Any, lab: dict[str, Any], prefix: str = "") -> Iterator[CommandEntry]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _found(command, lab, f"{prefix}{name} ")
        else:
            real = lab.get(prefix + name, command)
            options = tuple(_option(each) for each in real.params if "--help" not in each.opts)
            yield CommandEntry(prefix + name, real.help or "", options)


def _option(given: Any) -> Option:
    option = given.param_type_name == "option"
    names = [*given.opts, *given.secondary_opts] if option else [str(given.metavar or given.name).upper()]
    if option and not given.is_flag:
        names[0] += f" {given.metavar or 'VALUE'}"
    return Option(tuple(names), "required" if given.required else _default(given), given.help or "", given.required)


def _default(given: Any) -> str:
    value = given.default
    value = value.value if isinstance(value, Enum) else value
    if value is None or value is False or value in ("", [], ()) or callable(value):
        return ""
    shown = ", ".join(map(str, value)) if isinstance(value, list | tuple) else value
    return f"`{shown}`"
