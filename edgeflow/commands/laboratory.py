"""The commands of the laboratory (edgeflow/lab), imported when they run: an installation may lack the laboratory."""

from __future__ import annotations

import contextlib
import importlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import typer
from typer.core import TyperCommand

from edgeflow_client.errors import DependencyError, how_to_install

LABORATORY = "Laboratory: convert, verify, tune, train and evaluate"
"""The heading of these commands in `edgeflow --help`."""


@dataclass(frozen=True, slots=True)
class LabCommand:
    """A command of the laboratory."""

    name: str
    """Its name, after that of its group in GROUPS if it is in one."""
    module: str
    """Its module in edgeflow.lab.commands; the function has the name of the command, with underscores."""
    help: str
    """Its line in `edgeflow --help`: the first line of the function's docstring."""
    extra: str = ""
    """The extra that installs the libraries it needs beyond the server's."""
    everyday: bool = False
    """Listed among the service's commands, not under LABORATORY."""


GROUPS = {"policy": "Check policies.", "recording": "Look at recordings, replay, compare and export them."}
"""Groups of commands, with their lines in `edgeflow --help`."""
COMMANDS = (
    LabCommand(
        "demo", "robots", "Serve a policy and compare its modes with the simulated robot.", "demo", everyday=True
    ),
    LabCommand("robot", "robots", "Run the simulated robot against a service.", "demo", everyday=True),
    LabCommand("sim", "simulating", "Run a policy in a gymnasium environment.", "sim", everyday=True),
    LabCommand("verify", "checking", "Compare a checkpoint's outputs with recordings of the original."),
    LabCommand("policy check", "checking", "Check that a policy keeps the rules of a family."),
    LabCommand("recording info", "recordings", "Show what is in a recording.", "record"),
    LabCommand("recording replay", "recordings", "Replay a recording, and show where answers part.", "record"),
    LabCommand("recording compare", "recordings", "Run two models on the frames of a recording.", "record"),
    LabCommand("recording export", "recordings", "Export a recording as a LeRobot dataset.", "dataset"),
    LabCommand("quantize", "converting", "Quantise a chat model or a policy to 4 bits (AWQ)."),
    LabCommand("export", "converting", "Export a model as ONNX graphs of fixed shapes.", "onnx"),
    LabCommand("tune", "checking", "Find the fastest correct implementation of each operator."),
    LabCommand("ops", "checking", "Show which implementation runs each operator, and why."),
    LabCommand("cosim", "converting", "Estimate the speed of a model on the KV260 accelerator."),
    LabCommand("eval-demo", "training", "Evaluate a policy in closed loop, in virtual time.", "demo"),
    LabCommand("eval-chat", "training", "Measure the exact match of a chat model on held-out questions."),
    LabCommand("eval-logs", "training", "Measure the exact match of a chat model on robot logs."),
    LabCommand("train-demo", "training", "Train an embedded model.", "demo"),
    LabCommand("train-gate", "training", "Train the memory gate of a chat model on long texts."),
    LabCommand("draw-logs", "training", "Generate conversations about long robot logs for train-gate."),
)


def loaded(line: LabCommand) -> typer.Typer:
    """An application with only this command; DependencyError if the laboratory is not installed."""
    with _naming_what_is_missing(line):
        module = importlib.import_module(f"edgeflow.lab.commands.{line.module}")
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(line.name)(getattr(module, re.sub("[ -]", "_", line.name)))
    return app


@contextlib.contextmanager
def _naming_what_is_missing(line: LabCommand) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if missing.startswith("edgeflow.lab"):
            raise DependencyError(f"{line.name}: this installation has no laboratory (edgeflow/lab)") from None
        extra = "demo" if missing == "matplotlib" else line.extra  # plots are in no extra of recordings
        raise DependencyError(f"{line.name}: {missing} is not installed; {how_to_install(extra)}") from None


def lazy(line: LabCommand) -> type[TyperCommand]:
    """The class of a command that `--help` lists without importing it; the real command is loaded when it runs."""

    class LazyCommand(TyperCommand):
        def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
            real = typer.main.get_command(loaded(line))
            if real.callback is not None:
                real.callback = _naming_what_is_missing(line)(real.callback)  # most libraries are imported as it runs
            return real.make_context(info_name, args, parent, **extra)

    return LazyCommand


def add_everyday(app: typer.Typer) -> None:
    """Add the everyday commands to the command line."""
    for line in COMMANDS:
        if line.everyday:
            app.command(line.name, cls=lazy(line), help=line.help)(_placeholder)


def add_laboratory(app: typer.Typer) -> None:
    """Add the other commands to the command line, under a heading."""
    groups = {name: typer.Typer(help=text, no_args_is_help=True) for name, text in GROUPS.items()}
    for line in COMMANDS:
        *group, name = line.name.split()
        if group:
            groups[group[0]].command(name, cls=lazy(line), help=line.help)(_placeholder)
        elif not line.everyday:
            app.command(name, cls=lazy(line), help=line.help, rich_help_panel=LABORATORY)(_placeholder)
    for name, added in groups.items():
        app.add_typer(added, name=name, rich_help_panel=LABORATORY)


def _placeholder() -> None:
    """Stands for a command that has not been imported."""
