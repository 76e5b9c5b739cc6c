"""The shape of the tree, beside the import contracts (test_contracts.py)."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "edgeflow"
CLIENT = ROOT / "client" / "edgeflow_client"
CLIENT_NEEDS = {"grpc", "google", "numpy", "edgeflow_client"}
"""The libraries that the client installs."""
OF_EXTRAS = {"pictures.py": {"simplejpeg", "PIL"}, "recording.py": {"msgspec"}}
"""Libraries of the extras `images` and `record`, imported when they are needed."""
MOST_LINES = 400


def sources() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py")


def of_the_client() -> list[Path]:
    return sorted(CLIENT.rglob("*.py"))


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import in {path}"
            names.add(node.module or "")
            names |= {f"{node.module}.{alias.name}" for alias in node.names if node.module == "edgeflow"}
    return names


def test_a_module_can_be_read_at_a_sitting():
    written = [*sources(), *(path for path in of_the_client() if path.parent.name != "rpc")]
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in written}
    assert {path: length for path, length in lengths.items() if length > MOST_LINES} == {}


def test_subpackages_are_namespaces():
    """A root link with an __init__.py would hide an installed library of its name."""
    found = [path for path in PACKAGE.rglob("__init__.py") if path.parent != PACKAGE]
    assert found == []


@pytest.mark.parametrize(
    "path", ["edgeflow/service", "edgeflow/scheduler", "edgeflow/kernels", "client/edgeflow_client/loadtest"]
)
def test_the_root_shows_the_system(path: str):
    link = ROOT / Path(path).name
    assert link.is_symlink() and link.readlink() == Path(path)


def test_the_client_stands_alone():
    """It imports nothing of the server's. Only the load test and recordings have libraries that a robot may lack."""
    found = {}
    for path in of_the_client():
        tops = {name.split(".")[0] for name in imported(path)} - sys.stdlib_module_names
        whole = {"loadtest", "recording"} & set(path.parts)
        allowed = tops - {"edgeflow"} if whole else CLIENT_NEEDS | OF_EXTRAS.get(path.name, set())
        found[str(path.relative_to(ROOT))] = tops - allowed
    assert {path: names for path, names in found.items() if names} == {}


def test_no_import_of_ours_loads_torch_in_the_front():
    folders = [PACKAGE / name for name in ("service", "scheduler", "ipc")]
    paths = [path.relative_to(ROOT).with_suffix("") for folder in folders for path in folder.rglob("*.py")]
    paths += [path.relative_to(CLIENT.parent).with_suffix("") for path in of_the_client()]
    code = (
        "import sys, importlib\n"
        f"for name in {['.'.join(path.parts) for path in paths]}:\n"
        "    importlib.import_module(name)\n"
        "bad = {'torch', 'transformers'} & set(sys.modules)\n"
        "sys.exit(f'the front loads {bad}' if bad else 0)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
