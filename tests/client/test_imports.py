"""An installation without extras is all that a robot needs."""

import importlib.metadata
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
NEEDED = {"edgeflow", "grpc", "google", "numpy"}
OF_GRPC = {"typing_extensions", "cython_runtime", "grpc_health", "grpc_reflection"}  # the last two where installed


def test_the_sdk_loads_grpc_protobuf_numpy_and_nothing_else():
    code = (
        "import sys; before = set(sys.modules)\n"
        "import pkgutil, importlib, edgeflow_client\n"
        "for module in pkgutil.iter_modules(edgeflow_client.__path__, 'edgeflow_client.'):\n"
        "    importlib.import_module(module.name)\n"
        "loaded = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(*sorted(loaded - set(sys.stdlib_module_names)))\n"
        "ours = {name.split('.')[1] for name in sys.modules if name.startswith('edgeflow.')}\n"
        "print(*sorted(ours))\n"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    libraries, rooms = (set(line.split()) for line in result.stdout.splitlines())
    assert libraries >= NEEDED
    hidden = {name for name in libraries - NEEDED - OF_GRPC if not name.startswith("_")}
    assert hidden == set()
    assert rooms == {"client", "rpc", "types", "trajectory", "errors", "reasons", "clock", "files"}


def test_the_base_dependencies_are_these_three():
    requirements = importlib.metadata.requires("edgeflow")
    assert requirements is not None
    base = [requirement for requirement in requirements if "extra ==" not in requirement]
    names = sorted(requirement.split(">")[0].split("<")[0].split("=")[0].strip() for requirement in base)
    assert names == ["grpcio", "numpy", "protobuf"]


def test_the_command_says_what_it_needs_beyond_the_sdk():
    code = (
        "import importlib.util as util; find = util.find_spec\n"
        "util.find_spec = lambda name, *more: None if name == 'typer' else find(name, *more)\n"
        "import edgeflow.cli\n"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert result.returncode == 2
    (told,) = result.stderr.splitlines()
    assert told.startswith("edgeflow: ") and "pip install '.[server]'" in told
