"""The client without extras is all that a robot needs."""

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import edgeflow_client

ROOT = Path(__file__).parents[2]
NEEDED = {"edgeflow_client", "grpc", "google", "numpy"}
OF_GRPC = {"typing_extensions", "cython_runtime", "grpc_health", "grpc_reflection"}  # the last two where installed


def test_the_sdk_loads_grpc_protobuf_numpy_and_nothing_else():
    code = (
        "import sys; before = set(sys.modules)\n"
        "import pkgutil, importlib, edgeflow_client\n"
        "for module in pkgutil.iter_modules(edgeflow_client.__path__, 'edgeflow_client.'):\n"
        "    importlib.import_module(module.name)\n"
        "loaded = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(*sorted(loaded - set(sys.stdlib_module_names)))\n"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    libraries = set(result.stdout.split())
    assert libraries >= NEEDED
    hidden = {name for name in libraries - NEEDED - OF_GRPC if not name.startswith("_")}
    assert hidden == set()


def test_the_base_dependencies_are_these_three():
    requirements = importlib.metadata.requires("edgeflow-client")
    assert requirements is not None
    base = [requirement for requirement in requirements if "extra ==" not in requirement]
    names = sorted(requirement.split(">")[0].split("<")[0].split("=")[0].strip() for requirement in base)
    assert names == ["grpcio", "numpy", "protobuf"]


def test_every_name_of_the_package_is_there_and_importing_it_loads_nothing():
    code = (
        "import sys, edgeflow_client as client\n"
        "assert not {'grpc', 'numpy', 'google'} & set(sys.modules)\n"
        "print(*(getattr(client, name).__name__ for name in client.__all__))\n"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert result.stdout.split() == edgeflow_client.__all__
