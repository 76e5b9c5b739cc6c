"""Launches of Triton kernels by what they are compiled for, where nothing is compiled or run."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor
from triton.runtime.jit import JITFunction

Signature = tuple[Any, ...]


def _specialised(value: Any) -> Any:
    """What Triton compiles for: alignment of pointers; integers that are 1, divisible by 16, or wide."""
    if isinstance(value, Tensor):
        return value.dtype, value.storage_offset() * value.element_size() % 16 == 0
    if isinstance(value, int) and not isinstance(value, bool):
        return value == 1, value % 16 == 0, value >= 1 << 31
    return type(value)


def _signature(kernel: JITFunction, given: tuple[Any, ...], options: dict[str, Any]) -> Signature:
    names = {param.name: param for param in kernel.params}
    values = dict(zip(names, given, strict=False)) | {name: options[name] for name in names if name in options}
    rest = {name: value for name, value in options.items() if name not in names and name not in ("grid", "warmup")}
    told = [(name, _told(names[name], value)) for name, value in values.items()]
    return kernel.__name__, *told, *sorted(rest.items())


def _told(param: Any, value: Any) -> Any:
    if param.is_constexpr:
        return value
    return type(value) if param.do_not_specialize else _specialised(value)


def launches(monkeypatch: pytest.MonkeyPatch) -> set[Signature]:
    """The signatures of the kernels that are launched from now on, which are neither compiled nor run."""
    seen: set[Signature] = set()

    def launch(kernel: JITFunction, *given: Any, **options: Any) -> None:
        seen.add(_signature(kernel, given, options))

    monkeypatch.setattr(JITFunction, "run", launch)
    return seen
