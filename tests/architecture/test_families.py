"""Only the registry names the families of policies: a new one touches its own folder and one line."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from edgeflow.policies.registry import FAMILIES
from tests.architecture.test_imports import PACKAGE, imported

ROOMS = ("service", "scheduler", "engine", "worker", "commands")
SOURCES = sorted(path for room in ROOMS for path in (PACKAGE / room).rglob("*.py"))
COMMON_WORDS = {"act", "openvla"}  # also names of a route, a command and a front end: what is imported finds these
SHARED = {"flow"}
"""Folders that several families import."""
NAMES = [family.name for family in FAMILIES if family.name not in COMMON_WORDS]


def code_of(path: Path) -> str:
    """The source without comments and docstrings."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [line for line in body if not _is_text(line)] or [ast.Pass()]
    return ast.unparse(tree)


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def names_of_families(path: Path) -> set[str]:
    """The families that a module names, and the modules of families that it imports."""
    of_policies = {name for name in imported(path) if name.startswith("edgeflow.policies.")}
    named = re.findall("|".join(map(re.escape, NAMES)), code_of(path), re.IGNORECASE)
    return {*named, *of_policies} - {"edgeflow.policies.registry", "edgeflow.policies.family"}


def test_no_line_of_code_names_a_family():
    found = {str(path.relative_to(PACKAGE)): names_of_families(path) for path in SOURCES}
    assert {path: names for path, names in found.items() if names} == {}


def test_a_family_is_found_by_its_name_and_by_its_import(tmp_path: Path):
    path = tmp_path / "module.py"
    path.write_text('from edgeflow.policies.act.policy import Act\n\nNAME = "SmolVLA"\n')
    assert names_of_families(path) == {"edgeflow.policies.act.policy", "SmolVLA"}


def test_comments_and_docstrings_may_name_one(tmp_path: Path):
    path = tmp_path / "module.py"
    path.write_text('"""Like openvla."""\n\nLINE = "openvla"  # openvla\n\n\ndef name():\n    """Of openvla."""\n')
    assert code_of(path).count("openvla") == 1


def test_every_folder_is_of_families_or_what_they_share():
    folders = {path.name for path in (PACKAGE / "policies").iterdir() if path.is_dir() and path.name != "__pycache__"}
    of_families = {
        name.split(".")[2] for name in imported(PACKAGE / "policies/registry.py") if name.endswith(".family")
    } - {"family"}
    assert folders == of_families | SHARED
