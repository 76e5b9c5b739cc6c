"""Who may import whom, read from the source (docs/architecture.md)."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "edgeflow"
LEAVES = {"contract"}
ENGINE = LEAVES | {"artifacts", "config", "model_paths", "ipc", "kernels", "models", "scheduler", "text"}
ALLOWED: dict[str, set[str]] = {
    "contract": set(),
    "model_paths": LEAVES,
    "config": LEAVES | {"model_paths"},
    "console": set(),
    "openmp": set(),
    "outputs": LEAVES,
    "ipc": LEAVES,
    "text": LEAVES | {"ipc"},
    "artifacts": LEAVES | {"text"},
    "kernels": LEAVES,
    "models": LEAVES | {"kernels", "text"},
    "scheduler": LEAVES,
    "engine/sampling": LEAVES | {"kernels", "models"},
    "engine": ENGINE - {"ipc"} | {"engine/sampling"},
    "engine/drafts": ENGINE - {"ipc"} | {"engine", "engine/sampling"},
    "engine/exported": ENGINE - {"ipc"} | {"engine", "engine/flow"},
    "engine/flow": ENGINE - {"ipc"} | {"engine"},
    "engine/control": ENGINE | {"engine", "engine/flow"},
    "engine/chat": ENGINE | {"engine", "engine/drafts", "engine/exported", "engine/sampling"},
    "worker": ENGINE | {"engine", "engine/control", "engine/chat", "engine/exported", "policies", "openmp"},
    "policies": LEAVES
    | {
        "artifacts",
        "engine",
        "engine/control",
        "engine/exported",
        "engine/flow",
        "kernels",
        "models",
        "scheduler",
        "text",
    },
    "service": LEAVES | {"artifacts", "config", "model_paths", "ipc", "policies", "scheduler", "text"},
    "commands": LEAVES | {"config", "console", "models", "service", "engine/chat"},
    "cli": LEAVES | {"commands", "console", "openmp", "service"},
    "__main__": {"cli"},
}
ALLOWED["lab"] = set(ALLOWED) - {"service", "cli", "__main__"}
"""The laboratory uses all that serves; the service itself runs beside it, as a process."""
ROOMS_INSIDE = {"engine": {"sampling", "flow", "exported", "control", "chat"}}
"""Rooms that a room holds; the modules beside them are the room itself."""
CLIENT = ROOT / "client" / "edgeflow_client"
CLIENT_LAYERS = ("rpc", "connection", "", "loadtest")
CLIENT_NEEDS = {"grpc", "google", "numpy", "edgeflow_client"}
"""The libraries that the client installs; its load test may have more."""
LAYERS = {
    "kernels": ("kv", "", "narrow_kv", "native", "quantised", "triton", "flashinfer", "table", "static"),
    "lab/export": ("graphs", "policies", "quantised", ""),
    "lab/verify": ("recorded", "policies", ""),
    "lab/quantize": ("search", "calibration", "files", "policies", ""),
    "lab/demo": ("world", "simulated", "", "training", "flow_training", "chat"),
}
"""Folders of a room; each imports only what stands before it. "": the modules beside them."""
MOST_LINES = 400
NO_TORCH = {
    "contract",
    "config",
    "model_paths",
    "ipc",
    "scheduler",
    "service",
    "text",
    "openmp",
    "outputs",
}
HEAVY = {"torch", "transformers"}


def room(path: Path) -> str:
    return room_of(path.relative_to(PACKAGE).with_suffix("").parts)


def room_of(parts: Sequence[str]) -> str:
    """engine.control.plane is of engine/control, engine.graphs of engine"""
    inside = parts[1:2] if parts[1:2] and parts[1] in ROOMS_INSIDE.get(parts[0], ()) else ()
    return "/".join((parts[0], *inside))


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


def test_every_room_has_a_rule():
    """A new room is added to the rules and to docs/architecture.md."""
    assert {room(path) for path in sources()} - ALLOWED.keys() == set()


def test_a_room_imports_only_what_it_may():
    found = {
        str(path.relative_to(ROOT)): rooms_imported(path) - ALLOWED[room(path)] - {room(path), "__version__"}
        for path in sources()
    }
    assert {path: rooms for path, rooms in found.items() if rooms} == {}


def test_no_room_without_torch_imports_it():
    light = [path for path in sources() if room(path) in NO_TORCH]
    found = [str(path.relative_to(ROOT)) for path in light if {n.split(".")[0] for n in imported(path)} & HEAVY]
    assert found == []


def rooms_imported(path: Path) -> set[str]:
    return {room_of(name.split(".")[1:]) for name in imported(path) if name.startswith("edgeflow.")}


def test_the_folders_of_a_room_are_layers():
    assert [offender for name in LAYERS for offender in imports_above(name)] == []


def imports_above(name: str) -> Iterator[str]:
    """The modules of a room that import a folder above their own."""
    layers = LAYERS[name]
    prefix = f"edgeflow.{name.replace('/', '.')}."
    for path in sorted((PACKAGE / name).rglob("*.py")):
        here = layers.index(folder_of(path.relative_to(PACKAGE / name).parts, layers))
        used = {
            folder_of(module.removeprefix(prefix).split("."), layers)
            for module in imported(path)
            if module.startswith(prefix)
        }
        if not used <= set(layers[: here + 1]):
            yield str(path.relative_to(ROOT))


def folder_of(parts: Sequence[str], layers: Sequence[str]) -> str:
    return parts[0] if parts[0] in layers else ""


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
    """It imports nothing of the server's, and outside the load test no library that a robot does not have."""
    found = {}
    for path in of_the_client():
        tops = {name.split(".")[0] for name in imported(path)} - sys.stdlib_module_names
        allowed = tops - {"edgeflow"} if "loadtest" in path.parts else CLIENT_NEEDS
        found[str(path.relative_to(ROOT))] = tops - allowed
    assert {path: names for path, names in found.items() if names} == {}


def test_the_folders_of_the_client_are_layers():
    above = []
    for path in of_the_client():
        here = CLIENT_LAYERS.index(folder_of(path.relative_to(CLIENT).parts, CLIENT_LAYERS))
        modules = [name.split(".")[1:] for name in imported(path) if name.startswith("edgeflow_client.")]
        used = {folder_of(parts, CLIENT_LAYERS) for parts in modules if parts[0] in CLIENT_LAYERS}
        above += [str(path.relative_to(ROOT))] if used - set(CLIENT_LAYERS[: here + 1]) else []
    assert above == []


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
