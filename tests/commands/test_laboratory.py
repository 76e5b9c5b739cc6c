"""The laboratory's commands stand in the help without being imported, and run as their functions say."""

from __future__ import annotations

import subprocess
import sys
from inspect import getdoc

import pytest
import typer

from edgeflow.commands import laboratory
from edgeflow.commands.laboratory import COMMANDS, LabCommand, loaded
from edgeflow_client.errors import DependencyError


@pytest.mark.parametrize("line", COMMANDS, ids=lambda line: line.name)
def test_the_help_of_a_command_is_the_first_line_of_its_function(line: LabCommand):
    function = loaded(line).registered_commands[0].callback
    assert " ".join((getdoc(function) or "").split("\n\n")[0].split()) == line.help


def test_the_help_imports_no_laboratory():
    code = "import sys\nfrom edgeflow.cli import app\ntry:\n app(['--help'])\nexcept SystemExit: pass\n"
    code += "sys.exit(int(any(name.startswith('edgeflow.lab') for name in sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0
    assert all(line.name.split()[0] in result.stdout for line in COMMANDS)


def test_an_installation_without_laboratory_says_so(monkeypatch: pytest.MonkeyPatch):
    def missing(name: str) -> None:
        raise ModuleNotFoundError(name="edgeflow.lab")

    monkeypatch.setattr(laboratory.importlib, "import_module", missing)
    with pytest.raises(DependencyError, match="no laboratory"):
        loaded(COMMANDS[0])


@pytest.mark.parametrize(
    ("command", "library", "extra"),
    [("demo", "mujoco", "demo"), ("recording compare", "mcap", "record"), ("recording compare", "matplotlib", "demo")],
)
def test_a_library_that_is_missing_is_named_with_its_extra(
    command: str, library: str, extra: str, monkeypatch: pytest.MonkeyPatch
):
    def missing(name: str) -> None:
        raise ModuleNotFoundError(name=library)

    monkeypatch.setattr(laboratory.importlib, "import_module", missing)
    with pytest.raises(DependencyError, match=rf"{library} is not installed.*\[{extra}\]"):
        loaded(next(each for each in COMMANDS if each.name == command))


def test_a_command_runs_with_its_own_options():
    command = typer.main.get_command(loaded(next(line for line in COMMANDS if line.name == "ops")))
    assert {"model", "rows", "overlay"} <= {each.name for each in command.params}
