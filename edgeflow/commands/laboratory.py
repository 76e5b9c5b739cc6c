"""The commands of the laboratory (edgeflow/lab), imported when they run: an installation may lack the laboratory."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import typer
from typer.core import TyperCommand

from edgeflow_client.errors import DependencyError, how_to_install


@dataclass(frozen=True, slots=True)
class LabCommand:
    """A command of the laboratory."""

    name: str
    module: str
    """Its module in edgeflow.lab.commands; the function has the name of the command, with underscores."""
    help: str
    """Its line in `edgeflow --help`: the first line of the function's docstring."""
    extra: str = ""
    """The extra that installs its libraries beyond the server's."""


COMMANDS = (
    LabCommand("robot", "robots", "Run the simulated robot against a service.", "demo"),
    LabCommand(
        "demo",
        "robots",
        "Demonstrate the modes: serve a policy, run the simulated robot against it in each of its modes, and compare.",
        "demo",
    ),
    LabCommand(
        "verify",
        "checking",
        "Compare a checkpoint's outputs with recordings of the original implementation, in float32.",
    ),
    LabCommand("quantize", "converting", "Quantise a chat model or a policy to 4 bits by the AWQ search, on the CPU."),
    LabCommand(
        "export",
        "converting",
        "Export a model as static ONNX graphs: towers, prefill and one step, with explicit KV inputs and outputs.",
        "onnx",
    ),
    LabCommand(
        "eval-demo",
        "training",
        "Evaluate a policy in closed loop, in virtual time, with the real scheduler and engine.",
        "demo",
    ),
    LabCommand(
        "train-demo",
        "training",
        "Train an embedded model: hours on 2 cores without --minutes. A run that was stopped goes on.",
        "demo",
    ),
    LabCommand(
        "train-gate",
        "training",
        "Train the memory gate of a chat model, so that it answers from texts longer than its slot.",
    ),
    LabCommand("eval-chat", "training", "Measure the exact match of a chat model on held-out questions."),
    LabCommand(
        "eval-logs", "training", "Measure the exact match of a chat model on questions about logs of robot states."
    ),
    LabCommand(
        "draw-logs",
        "training",
        "Write conversations about long logs of robot states for train-gate; the answers lie in the compressed part.",
    ),
    LabCommand("ops", "checking", "Show which implementation runs each operator of a model on a device, and why."),
    LabCommand(
        "tune",
        "checking",
        "Find the fastest correct implementation of each operator on this machine and write an overlay.",
    ),
    LabCommand(
        "cosim",
        "converting",
        "Estimate a model on the KV260 accelerator: time of each operation beside the paper's, tokens per second.",
    ),
)


def loaded(line: LabCommand) -> typer.Typer:
    """The command as an application with only this command; DependencyError if it is not installed."""
    with _naming_what_is_missing(line):
        module = importlib.import_module(f"edgeflow.lab.commands.{line.module}")
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(line.name)(getattr(module, line.name.replace("-", "_")))
    return app


@contextlib.contextmanager
def _naming_what_is_missing(line: LabCommand) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if missing.startswith("edgeflow.lab"):
            raise DependencyError(f"{line.name}: this installation has no laboratory (edgeflow/lab)") from None
        raise DependencyError(f"{line.name}: {missing} is not installed; {how_to_install(line.extra)}") from None


def lazy(line: LabCommand) -> type[TyperCommand]:
    """The class of a command that appears in `--help`, and imports the real one when it runs."""

    class LazyCommand(TyperCommand):
        def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
            real = typer.main.get_command(loaded(line))
            if real.callback is not None:
                real.callback = _naming_what_is_missing(line)(real.callback)  # most libraries are imported as it runs
            return real.make_context(info_name, args, parent, **extra)

    return LazyCommand


def add_to(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    for line in COMMANDS:
        app.command(line.name, cls=lazy(line), help=line.help)(_nothing)


def _nothing() -> None:
    """A placeholder for a command that is not imported yet."""
