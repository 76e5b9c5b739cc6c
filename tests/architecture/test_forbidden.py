"""What no line of the package may do: run what it reads, fetch what it is told, check by assertion."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE, CLIENT = ROOT / "edgeflow", ROOT / "client" / "edgeflow_client"

MODULES = {
    **dict.fromkeys(("pickle", "cPickle", "cloudpickle", "dill", "marshal", "joblib", "shelve"), "runs what it reads"),
    **dict.fromkeys(("requests", "urllib.request", "aiohttp", "http.client", "ftplib"), "fetches what it is told"),
    **dict.fromkeys(("ctypes.util", "code", "codeop"), "runs what it is given"),
    **dict.fromkeys(("httpx", "smtplib", "telnetlib", "xmlrpc"), "connects to where it is told"),
}
CALLS = {
    **dict.fromkeys(("eval", "exec", "compile", "__import__", "input"), "runs or asks for text"),
    **dict.fromkeys(("importlib.import_module", "importlib.util.spec_from_file_location", "runpy.run_path"), "imports"),
    **dict.fromkeys(("torch.load", "torch.jit.load", "torch.hub.load", "torch.package"), "runs what it reads"),
    **dict.fromkeys(("yaml.load", "yaml.unsafe_load", "yaml.full_load", "numpy.fromregex"), "makes objects"),
    **dict.fromkeys(("os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput"), "runs a shell"),
    **dict.fromkeys(("tempfile.mktemp",), "a name that another may take first"),
}
TRUE_ARGUMENTS = {"allow_pickle", "trust_remote_code", "shell"}
ALLOWED = {
    (
        "edgeflow/lab/gpu/sections/served.py",
        "http.client",
    ): "the service that this section of the GPU suite has started itself",
    (
        "client/edgeflow_client/connection/http.py",
        "http.client",
    ): "a service that a person named",
    ("client/edgeflow_client/__init__.py", "importlib.import_module"): "modules of its own table",
    ("edgeflow/__init__.py", "importlib.import_module"): "modules of its own table",
    ("edgeflow/commands/laboratory.py", "importlib.import_module"): "modules that its own table names",
    ("edgeflow/commands/chat.py", "input"): "the person at the terminal of `edgeflow chat`",
    (
        "edgeflow/kernels/table/implementations.py",
        "importlib.import_module",
    ): "modules of its catalogue",
    ("edgeflow/models/weights_only.py", "torch.load"): "tensors and plain containers, with weights_only=True",
}


def sources() -> list[Path]:
    return sorted(path for top in (PACKAGE, CLIENT) for path in top.rglob("*.py") if path.parent.name != "rpc")


def dotted(node: ast.expr, names: dict[str, str]) -> str:
    """`np.load` as `numpy.load`, by the file's own imports."""
    if isinstance(node, ast.Name):
        return names.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value, names)}.{node.attr}"
    return ""


def imported_names(tree: ast.AST) -> dict[str, str]:
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.asname or alias.name.split(".")[0]: alias.name for alias in node.names if alias.asname}
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return names


def modules(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.lineno, node.module
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


@cache
def findings(text: str) -> list[tuple[int, str]]:
    """Line and name of everything forbidden in a source."""
    tree = ast.parse(text)
    names = imported_names(tree)
    found = [
        (line, name)
        for line, name in modules(tree)
        if any(name == bad or name.startswith(f"{bad}.") for bad in MODULES)
    ]
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            found.append((node.lineno, "assert"))
        if isinstance(node, ast.Call):
            found += [(node.lineno, name) for name in [dotted(node.func, names)] if name in CALLS]
            found += [(node.lineno, keyword.arg) for keyword in node.keywords if _switched_on(keyword)]
    return found


def _switched_on(keyword: ast.keyword) -> bool:
    """A dangerous argument that is anything but a literal no."""
    value = keyword.value
    off = isinstance(value, ast.Constant) and not value.value
    if keyword.arg == "weights_only":
        return not (isinstance(value, ast.Constant) and value.value is True)
    return keyword.arg in TRUE_ARGUMENTS and not off


def test_nothing_forbidden():
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in sources()
        for line, name in findings(path.read_text())
        if (str(path.relative_to(ROOT)), name) not in ALLOWED
    ]
    assert found == []


def test_every_exception_is_needed():
    needed = {(str(path.relative_to(ROOT)), name) for path in sources() for _, name in findings(path.read_text())}
    assert set(ALLOWED) <= needed


def test_the_one_reader_of_pt_files_builds_nothing_but_tensors():
    tree = ast.parse((PACKAGE / "models/weights_only.py").read_text())
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and dotted(node.func, {}) == "torch.load"]
    arguments = [{word.arg: ast.unparse(word.value) for word in call.keywords} for call in calls]
    assert [(each["weights_only"], each["map_location"]) for each in arguments] == [("True", "'cpu'")]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("import pickle", "pickle"),
        ("from urllib import request", "urllib.request"),
        ("import urllib.request as r", "urllib.request"),
        ("from torch import load\nload('x')", "torch.load"),
        ("import torch as t\nt.load('x', weights_only=True)", "torch.load"),
        ("import torch\ntorch.load('x', weights_only=False)", "weights_only"),
        ("import numpy as np\nnp.load('x', allow_pickle=True)", "allow_pickle"),
        ("f(trust_remote_code=flag)", "trust_remote_code"),
        ("import subprocess as s\ns.run('ls', shell=True)", "shell"),
        ("assert user.admin", "assert"),
        ("eval('1')", "eval"),
        ("import importlib\nimportlib.import_module(name)", "importlib.import_module"),
        ("from os import system as go\ngo('ls')", "os.system"),
    ],
)
def test_it_is_found(text: str, name: str):
    assert name in {found for _, found in findings(text)}


@pytest.mark.parametrize("text", ["f(shell=False)", "model.eval()", "json.load(f)", "np.load('x', allow_pickle=False)"])
def test_the_harmless_is_not(text: str):
    assert findings(text) == []
