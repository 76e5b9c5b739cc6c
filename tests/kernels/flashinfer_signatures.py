"""What FlashInfer's functions take, read from its source without importing it.

Run by scripts/flashinfer-signatures: FOLDER VERSION..., each version unpacked in FOLDER/VERSION.
"""

from __future__ import annotations

import ast
import inspect
import json
import sys
from pathlib import Path

METHODS = {name: name for name in ("__init__", "plan", "run")}
USED = {
    "BatchPrefillWithPagedKVCacheWrapper": (
        "prefill.py",
        METHODS | {"reset_workspace_buffer": "reset_workspace_buffer"},
    ),
    "BatchDecodeWithPagedKVCacheWrapper": ("decode.py", METHODS | {"plan": "_plan_impl"}),
    "BatchAttention": ("attention/_core.py", METHODS),
    "rmsnorm": ("norm/__init__.py", {}),
    "fused_add_rmsnorm": ("norm/__init__.py", {}),
    "silu_and_mul": ("activation.py", {}),
    "apply_rope_with_cos_sin_cache": ("rope.py", {}),
}
"""Where each lies, and of a class its methods. The decode wrapper's plan hands its keywords to _plan_impl."""
RECORDED = Path(__file__).parent / "flashinfer_signatures.json"


def recorded() -> dict[str, dict[str, str]]:
    """By version and by name (`Class.method`): parameters as Python writes them."""
    return json.loads(RECORDED.read_text())


def signature(parameters: str) -> inspect.Signature:
    """With defaults where they are literals, None where they are other things."""
    given = ast.parse(f"def f({parameters}): ...").body[0].args
    kinds = inspect.Parameter
    defaults = [None] * (len(given.args) - len(given.defaults)) + given.defaults
    found = [_parameter(*pair, kinds.POSITIONAL_OR_KEYWORD) for pair in zip(given.args, defaults, strict=True)]
    found += [kinds(given.vararg.arg, kinds.VAR_POSITIONAL)] if given.vararg else []
    found += [_parameter(*pair, kinds.KEYWORD_ONLY) for pair in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    found += [kinds(given.kwarg.arg, kinds.VAR_KEYWORD)] if given.kwarg else []
    return inspect.Signature(found)


def _parameter(arg: ast.arg, default: ast.expr | None, kind: object) -> inspect.Parameter:
    if default is None:
        return inspect.Parameter(arg.arg, kind)
    try:
        return inspect.Parameter(arg.arg, kind, default=ast.literal_eval(default))
    except ValueError:
        return inspect.Parameter(arg.arg, kind, default=None)


def read(package: Path) -> dict[str, str]:
    """Of all that is used, from the folder of the package; KeyError names what is not there."""
    found: dict[str, str] = {}
    for name, (file, methods) in USED.items():
        here = _last_of_each(ast.parse((package / file).read_text()).body)
        if methods:
            inside = _last_of_each(here[name].body)
            found |= {f"{name}.{public}": _parameters(inside[own]) for public, own in methods.items()}
        else:
            found[name] = _parameters(here[name])
    return found


def _last_of_each(body: list[ast.stmt]) -> dict[str, ast.FunctionDef | ast.ClassDef]:
    """By name; overloads come before what they overload."""
    return {each.name: each for each in body if isinstance(each, ast.FunctionDef | ast.ClassDef)}


def _parameters(function: ast.FunctionDef) -> str:
    for each in ast.walk(function.args):
        if isinstance(each, ast.arg):
            each.annotation = None
    return ast.unparse(function.args)


if __name__ == "__main__":
    folder, *versions = sys.argv[1:]
    print(json.dumps({version: read(Path(folder) / version / "flashinfer") for version in versions}, indent=1))
