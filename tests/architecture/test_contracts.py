"""The import contracts of pyproject.toml hold (import-linter), with no import ignored.

Folders of the packages have no `__init__.py`, and import-linter looks into regular packages alone: it reads a copy that
has them.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = (ROOT / "edgeflow", ROOT / "client" / "edgeflow_client")
LINT = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True, no_logo=True))"


def copied(folder: Path) -> Path:
    """A copy of both packages in which every folder is a regular package."""
    for package in PACKAGES:
        shutil.copytree(package, folder / package.name, ignore=shutil.ignore_patterns("*.safetensors", "__pycache__"))
    for each in {parent for path in folder.rglob("*.py") for parent in path.parents if parent.is_relative_to(folder)}:
        (each / "__init__.py").touch()
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def lint(folder: Path) -> tuple[bool, str]:
    """Whether all contracts are kept, and the report."""
    result = subprocess.run([sys.executable, "-c", LINT], cwd=folder, capture_output=True, text=True, timeout=120)
    return result.returncode == 0, result.stdout + result.stderr


def test_every_contract_is_kept(tmp_path: Path):
    kept, report = lint(copied(tmp_path))
    assert kept, report


def test_no_import_is_ignored():
    assert "ignore_imports" not in (ROOT / "pyproject.toml").read_text()


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("edgeflow_client/types.py", "from edgeflow.contract import Pace"),
        ("edgeflow/engine/executor.py", "from edgeflow.lab.trials.cases import Case"),
        ("edgeflow/service/observe/log.py", "from edgeflow.service.sessions.frames import End"),
        ("edgeflow/scheduler/plan.py", "import torch"),
        ("edgeflow/scheduler/plan.py", "from edgeflow.ipc.parent_death import follow_parent"),
        ("edgeflow/service/app.py", "def load():\n    from edgeflow.models.llama import LlamaConfig"),
    ],
)
def test_a_broken_contract_is_found(tmp_path: Path, path: str, line: str):
    folder = copied(tmp_path)
    (folder / path).write_text(f"{(folder / path).read_text()}\n{line}\n")
    kept, report = lint(folder)
    assert not kept and "BROKEN" in report
