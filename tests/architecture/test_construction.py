"""Wide things are made by name: two neighbouring integers that change places would still type-check.

No dataclass of more than five fields without `kw_only`, no call with more than five positional arguments.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from itertools import takewhile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE, CLIENT = ROOT / "edgeflow", ROOT / "client" / "edgeflow_client"
SOURCES = sorted(path for top in (PACKAGE, CLIENT) for path in top.rglob("*.py") if path.parent.name != "rpc")
MOST = 5
HEADINGS = {"FoldingTable", "table.add_row"}
"""Calls of one kind of argument: the headings and cells of a table."""
SHAPES = {"make.normal"}
"""Calls of one kind of argument: the dimensions of a tensor."""
IN_PUBLISHED_ORDER = {
    "attend_tile",  # inlined by Triton: the pointers and constants of a launch
    "attend_seen",  # the same
    "score_keys",  # the same
    "fold_values",  # the same
    "_store_tile",  # the same
    "torch.ops.mkldnn._linear_pointwise.default",  # torch's own schema
    "mujoco.mjv_updateScene",  # a function in C
    "self._product",  # a function in C++ (kernels/native)
}
"""Calls whose order of arguments is published and the same everywhere."""


def wide_dataclasses(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and name of every dataclass of more than five fields that takes them by position."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.ClassDef):
            continue
        fields = list(takewhile(_is_no_mark, filter(_is_field, node.body)))
        if len(fields) > MOST and any(_by_position(decorator) for decorator in node.decorator_list):
            yield node.lineno, node.name


def _is_field(node: ast.stmt) -> bool:
    """True for a field that may be given by position, and for the mark KW_ONLY."""
    variable = ("ClassVar", "typing.ClassVar")
    if not isinstance(node, ast.AnnAssign) or ast.unparse(node.annotation).startswith(variable):
        return False
    given = node.value.keywords if isinstance(node.value, ast.Call) else []
    return not any(each.arg == "kw_only" and ast.unparse(each.value) == "True" for each in given)


def _is_no_mark(node: ast.stmt) -> bool:
    """False for the mark behind which a dataclass takes its fields by name."""
    return isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation) != "KW_ONLY"


def _by_position(decorator: ast.expr) -> bool:
    """Whether a decorator is `dataclass` without kw_only=True."""
    keywords = decorator.keywords if isinstance(decorator, ast.Call) else []
    name = ast.unparse(decorator.func if isinstance(decorator, ast.Call) else decorator)
    named = any(each.arg == "kw_only" and ast.unparse(each.value) == "True" for each in keywords)
    return name in ("dataclass", "dataclasses.dataclass") and not named


def wide_calls(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and name of every call with more than five positional arguments."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and len(node.args) > MOST and not _is_excepted(node):
            yield node.lineno, ast.unparse(node.func)


def _is_excepted(node: ast.Call) -> bool:
    """Launches of Triton kernels, `kernel[grid](…)`; views and permutations of tensors; the named exceptions."""
    if isinstance(node.func, ast.Subscript):
        return True
    if isinstance(node.func, ast.Attribute) and node.func.attr in ("view", "reshape", "permute"):
        return True
    return ast.unparse(node.func) in HEADINGS | SHAPES | IN_PUBLISHED_ORDER


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def findings(path: Path) -> list[tuple[int, str]]:
    tree = parsed(path)
    return sorted([*wide_dataclasses(tree), *wide_calls(tree)])


def test_what_is_wide_is_made_by_name():
    found = [f"{path.relative_to(ROOT)}:{line}: {name}" for path in SOURCES for line, name in findings(path)]
    assert found == []


def test_every_exception_is_still_needed():
    calls = [node for path in SOURCES for node in ast.walk(parsed(path)) if isinstance(node, ast.Call)]
    wide = {ast.unparse(node.func) for node in calls if len(node.args) > MOST}
    assert wide >= HEADINGS | SHAPES | IN_PUBLISHED_ORDER


@pytest.mark.parametrize(
    "text",
    [
        "@dataclass\nclass A:\n a: int\n b: int\n c: int\n d: int\n e: int\n f: int",
        "@dataclass(frozen=True)\nclass A:\n a: int\n b: int\n c: int\n d: int\n e: int\n f: int = 0",
        "@dataclasses.dataclass(kw_only=False)\nclass A:\n a: int\n b: int\n c: int\n d: int\n e: int\n f: int",
        "f(1, 2, 3, 4, 5, 6)",
        "x.f(1, 2, 3, 4, 5, *rest)",
    ],
)
def test_it_is_found(text: str):
    tree = ast.parse(text)
    assert [*wide_dataclasses(tree), *wide_calls(tree)]


@pytest.mark.parametrize(
    "text",
    [
        "@dataclass(kw_only=True)\nclass A:\n a: int\n b: int\n c: int\n d: int\n e: int\n f: int",
        "@dataclass\nclass A:\n a: int\n b: int\n c: int\n d: int\n e: int\n f: ClassVar[int] = 1",
        "@dataclass\nclass A:\n a: int\n b: int\n _: KW_ONLY\n c: int\n d: int\n e: int\n f: int",
        "class A:\n a: int\n b: int\n c: int\n d: int\n e: int\n f: int",
        "f(1, 2, 3, 4, 5, f=6)",
        "kernel[grid](1, 2, 3, 4, 5, 6)",
        "tensor.permute(0, 1, 2, 3, 4, 5)",
    ],
)
def test_the_harmless_is_not(text: str):
    tree = ast.parse(text)
    assert not [*wide_dataclasses(tree), *wide_calls(tree)]


GLOSS = re.compile(r"(?:^|[.;] )(\w+)(?: \[[^]]*\])?: ")
"""`seq: of the frame` in the docstring of a class."""


def glossed(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and name of every class whose docstring explains its fields, in place of a line below each field."""
    for node in ast.walk(tree):
        text = ast.get_docstring(node) if isinstance(node, ast.ClassDef) else None
        if text is not None and isinstance(node, ast.ClassDef):
            fields = {
                each.target.id
                for each in node.body
                if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
            }
            if fields & set(GLOSS.findall(" ".join(text.split()))):
                yield node.lineno, node.name


def test_fields_are_explained_below_them():
    paths = [*SOURCES, *sorted((ROOT / "benchmarks").rglob("*.py"))]
    found = [f"{path.relative_to(ROOT)}:{line}: {name}" for path in paths for line, name in glossed(parsed(path))]
    assert found == []
    assert list(glossed(ast.parse('class A:\n    """A frame. seq: its number."""\n    seq: int')))
