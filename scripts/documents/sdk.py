"""docs/reference/sdk.md: the names of edgeflow_client that a robot's program uses, from their source."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterable
from typing import Any

import edgeflow_client
from edgeflow_client.errors import EdgeflowError
from scripts.documents.tables import inline, table

CLIENT = "edgeflow_client"
WIDEST, NEWLINE = 90, "\n"
SHARED = re.compile(r"(Both|All three): ")
SECTIONS = {
    "Session": {
        "robot": ("RobotClient",),
        "connection.wire": ("Opened",),
        "flight": ("Statistics",),
        "connection.credentials": ("Credentials",),
        "rate": ("RateKeeper",),
    },
    "Observations": {"types": ("CameraSpec", "ImageFormat", "StateSpec", "Mode", "Execution"), "pose": ("Pose",)},
    "Actions": {
        "actions": ("Directive", "Action", "Target", "ToolTarget"),
        "types": ("Command", "ActionSchema", "StageTimings"),
    },
    "Latency and chunks": {
        "aging": ("Aging",),
        "blending": ("Blending", "Latest", "Weighted", "TemporalEnsemble"),
    },
}
"""Classes by section and module."""
HEAD = """# Python SDK

`edgeflow_client` is what a robot's program imports: a session that reconnects by itself, HOLD when the service goes
silent, and no action past its validity.

```python
from edgeflow_client import CameraSpec, ImageFormat, RobotClient

camera = CameraSpec("camera", 640, 480, ImageFormat.RGB8)
with RobotClient("127.0.0.1:50051", cameras=[camera], instruction="grasp the handle", control_period_s=0.05) as client:
    print(client.opened.schema.names)
```

[Your first robot](../start/first-robot.md) has a whole loop. Durations are in seconds, moments in nanoseconds of the
robot's monotonic clock.

"""
NO_METHODS = {"Aging", "Latest", "Weighted", "TemporalEnsemble"}
"""Value classes whose methods are for the client itself."""
ERRORS = """## Errors

Every error is an `EdgeflowError` (`from edgeflow_client.errors import ...`). `text` is its message in one line, `code`
a gRPC status name. A rejected request also has `field`, the part at fault; `reason`, one of the [reasons](reasons.md);
and `retry_after_ms`, unless trying again is useless.

"""


def names() -> set[str]:
    """The classes on the page."""
    return {name for modules in SECTIONS.values() for found in modules.values() for name in found}


def page() -> str:
    """The page."""
    text = HEAD
    for section, modules in SECTIONS.items():
        text += f"## {section}\n\n"
        for module, found in modules.items():
            for name in found:
                text += _class(module, getattr(importlib.import_module(f"{CLIENT}.{module}"), name))
    return text + ERRORS + table(("Error", "Kind of", "Code", "HTTP", "Meaning"), map(_error, _errors(EdgeflowError)))


def split(text: str, known: Iterable[str]) -> tuple[str, dict[str, str]]:
    """The prose of a docstring, and the meaning of each name that it glosses (`name, name: meaning`, also listed)."""
    name = "|".join(sorted(map(re.escape, known), key=len, reverse=True))
    if not name:
        return text, {}
    heads = list(re.finditer(rf"(?:^(?:- )?|(?<=[.:)]\s))((?:{name})(?:, (?:{name}))*): ", text, re.MULTILINE))
    if not heads:
        return text, {}
    raised = re.compile(r"\sRaises\s").search(text, heads[-1].end())
    ends = [*(head.start() for head in heads[1:]), raised.start() if raised else len(text)]
    meanings = {}
    for head, end in zip(heads, ends, strict=True):
        for each in head[1].split(", "):
            meanings[each] = text[head.end() : end].strip()
    prose = text[: heads[0].start()] + (text[raised.start() :].strip() if raised else "")
    return prose.strip(), meanings


def _class(module: str, kind: type) -> str:
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    if not isinstance(tree, ast.ClassDef):
        raise TypeError(f"{kind} is not a class")
    where = CLIENT if kind.__name__ in edgeflow_client.__all__ else f"{CLIENT}.{module}"
    text = f"### `{kind.__name__}`\n\n```python\nfrom {where} import {kind.__name__}\n```\n\n"
    init = next((each for each in tree.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"), None)
    rows = _parameters(init) if init else _fields(tree)
    said, meanings = split(ast.get_docstring(tree) or "", [name for name, *_ in rows])
    text += _prose(said)
    is_enum = not init and bool(rows) and all(not annotation for _, annotation, *_ in rows)
    if rows:
        fields = {name: said for name, *_, said in _fields(tree)} | _properties(tree) if init else {}
        given = [(name, *rest, meanings.get(name) or said or fields.get(name, "")) for name, *rest, said in rows]
        text += _members(given) if is_enum else _table("Parameter" if init else "Field", given)
    for each in tree.body:
        if isinstance(each, ast.FunctionDef) and each.name[0] != "_" and kind.__name__ not in NO_METHODS:
            text += _method(kind, each)
    return text


def _properties(tree: ast.ClassDef) -> dict[str, str]:
    found = [each for each in tree.body if isinstance(each, ast.FunctionDef) and each.decorator_list]
    return {each.name: ast.get_docstring(each) or "" for each in found}


def _members(rows: list[tuple[str, str, str, str]]) -> str:
    lines = [(f"`{name}`", f"`{value}`", inline(meaning)) for name, _, value, meaning in rows]
    return table(("Member", "Value", "Meaning"), lines) + "\n"


def _table(head: str, rows: list[tuple[str, str, str, str]]) -> str:
    lines = [
        (f"`{name}`", f"`{annotation}`", f"`{default}`" if default else "", inline(meaning))
        for name, annotation, default, meaning in rows
    ]
    return table((head, "Type", "Default", "Meaning"), lines) + "\n"


def _method(kind: type, function: ast.FunctionDef) -> str:
    doc = ast.get_docstring(function)
    marks = [ast.unparse(each) for each in function.decorator_list]
    if not doc or any(mark.endswith(".setter") for mark in marks):
        return ""
    answer = ast.unparse(function.returns) if function.returns else "None"
    if "property" in marks:
        return f"**`{function.name}`** (`{answer}`): {inline(doc)}\n\n"
    rows = _parameters(function)
    said, meanings = split(doc, [name for name, *_ in rows])
    shown = [_shown(row) for row in rows]
    if function.args.kwonlyargs:
        shown.insert(len(rows) - len(function.args.kwonlyargs), "*")
    name = f"{kind.__name__}.{function.name}" if "classmethod" in marks else function.name
    call = f"{name}({', '.join(shown)}) -> {answer}"
    if len(call) > WIDEST:
        call = f"{name}(\n{''.join(f'    {each},{NEWLINE}' for each in shown)}) -> {answer}"
    text = f"```python\n{call}\n```\n\n{_prose(said)}"
    text += "".join(f"- `{name}`: {inline(meaning)}\n" for name, meaning in meanings.items())
    return f"{text}\n" if meanings else text


def _prose(text: str) -> str:
    """Paragraphs, and indented ones as code."""
    parts = [part for part in text.split("\n\n") if part.strip()]
    return "".join(
        f"```python\n{textwrap.dedent(part)}\n```\n\n" if part.startswith("    ") else f"{inline(part)}\n\n"
        for part in parts
    )


def _shown(row: tuple[str, str, str, str]) -> str:
    name, annotation, default, _ = row
    return f"{name}: {annotation}" + (f" = {default}" if default else "")


def _parameters(function: ast.FunctionDef) -> list[tuple[str, str, str, str]]:
    """Name, type, default and "" of each parameter."""
    given = function.args
    plain = [*given.posonlyargs, *given.args]
    defaults: list[Any] = [*[None] * (len(plain) - len(given.defaults)), *given.defaults, *given.kw_defaults]
    pairs = zip([*plain, *given.kwonlyargs], defaults, strict=True)
    return [
        (each.arg, ast.unparse(each.annotation) if each.annotation else "", ast.unparse(default) if default else "", "")
        for each, default in pairs
        if each.arg not in ("self", "cls")
    ]


def _fields(tree: ast.ClassDef) -> list[tuple[str, str, str, str]]:
    """Name, type, default and docstring of each field of a value class, or name and value of an enum's members."""
    found = []
    for each, following in zip(tree.body, [*tree.body[1:], None], strict=True):
        said = following.value if isinstance(following, ast.Expr) else None
        meaning = str(said.value) if isinstance(said, ast.Constant) else ""
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name) and each.target.id[0] != "_":
            default = ast.unparse(each.value) if each.value else ""
            found.append((each.target.id, ast.unparse(each.annotation), _factory(default), meaning))
        elif isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Name) and each.targets[0].id.isupper():
            found.append((each.targets[0].id, "", ast.unparse(each.value), meaning))
    for at, (*_, meaning) in enumerate(found):
        if shared := SHARED.match(meaning):
            for row in range(at - (1 if shared[1] == "Both" else 2), at + 1):
                found[row] = (*found[row][:3], meaning[shared.end() :])
    return found


def _factory(default: str) -> str:
    if match := re.fullmatch(r"field\(default_factory=_?(\w+)\)", default):
        return f"{match[1]}()"
    match = re.fullmatch(r"field\(default=([^,]+),.*\)", default)
    return match[1] if match else default


def _errors(kind: type[EdgeflowError]) -> list[type[EdgeflowError]]:
    found = [each for each in kind.__subclasses__() if each.__module__ == f"{CLIENT}.errors"]
    return [kind, *(inner for each in found for inner in _errors(each))]


def _error(kind: type[EdgeflowError]) -> tuple[str, ...]:
    above = kind.__bases__[0]
    parent = f"`{above.__name__}`" if issubclass(above, EdgeflowError) else ""
    summary = inline((inspect.getdoc(kind) or "").split("\n\n")[0])
    return f"`{kind.__name__}`", parent, f"`{kind.code}`", str(kind.http_status), summary
