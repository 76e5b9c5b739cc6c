"""An operator whose implementation follows the sizes it is called with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from edgeflow.kernels.table.shapes import Signed

Find = Callable[[str, str], Callable[..., Any]]
"""(stage, shape signature) → the function that serves"""


class ByShape:
    """Each shape is looked up when it is first seen."""

    def __init__(self, sign: Callable[..., Signed], find: Find) -> None:
        self._sign = sign
        self._find = find
        self._found: dict[Signed, Callable[..., Any]] = {}

    def __call__(self, *arguments: Any) -> Any:
        signed = self._sign(*arguments)
        if signed not in self._found:
            self._found[signed] = self._find(*signed)
        return self._found[signed](*arguments)
