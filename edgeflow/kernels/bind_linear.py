"""A weight with what the operator table chooses for it, for every number of rows."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from edgeflow.kernels.implementations import Hardware
from edgeflow.kernels.linear import ByRows, Linear
from edgeflow.kernels.shapes import SIGNATURES
from edgeflow.kernels.table import OperatorKey, OperatorTable

ROW_CLASSES = tuple(1 << power for power in range(14))
"""1, 2, 4, .. 8192 rows; more are served as the last."""


def bind_linear(table: OperatorTable, context: OperatorKey, weight: Tensor, bias: Tensor | None) -> Linear:
    """Each implementation that is chosen for some number of rows is made once.

    context: of operator `linear`; its shape is taken from the weight.
    """
    hardware = Hardware.of(weight.device)
    made: dict[str, Linear] = {}
    by_class: list[Linear] = []
    for rows in ROW_CLASSES:
        _, shape_sig = SIGNATURES["linear"](weight, bias, rows)
        choice = table.choose(replace(context, shape_sig=shape_sig), hardware, weight.dtype)
        name = f"{choice.implementation.impl_id} {choice.params}"
        if name not in made:
            made[name] = choice.load()(weight, bias)
        by_class.append(made[name])
    return by_class[0] if len(made) == 1 else ByRows(by_class)
