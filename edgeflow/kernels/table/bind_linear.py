"""A weight with the implementations that the operator table chooses for it, per stage and number of rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from edgeflow.kernels.linear import ByRows, Linear
from edgeflow.kernels.table.dimensions import SIGNATURES
from edgeflow.kernels.table.implementations import Hardware
from edgeflow.kernels.table.operator_table import Choice, OperatorKey, OperatorTable
from edgeflow.kernels.weights import FLOAT, Weight
from edgeflow_client.errors import ConfigError

ROW_CLASSES = tuple(1 << power for power in range(14))
"""1, 2, 4, … 8192 rows; more are served as the last."""


@runtime_checkable
class Compiled(Protocol):
    """An implementation whose kernels are compiled when a call first launches them, which takes seconds."""

    def compile(self, dtype: torch.dtype) -> None:
        """Compile the kernels of calls with rows in this dtype."""
        ...


def bind_linear(
    table: OperatorTable, context: OperatorKey, weight: Weight, bias: Tensor | None
) -> Mapping[str, Linear]:
    """The linear of each stage. An implementation that is chosen more than once is made once.

    ConfigError where several implementations are chosen for a quantised weight, since each would keep its own copy.
    context: of operator `linear`, without stage, format and shape: format and shape are the weight's.
    """
    context = replace(context, weight=weight.format)
    groups = table.stages(context)
    hardware = Hardware.of(weight.device)
    chosen = [choices_by_rows(table, replace(context, stage=stages[0]), weight, hardware) for stages in groups]
    check_one_copy(context, weight, [choice for choices in chosen for choice in choices])
    made: dict[str, Linear] = {}
    bound: dict[str, Linear] = {}
    for stages, choices in zip(groups, chosen, strict=True):
        bound |= dict.fromkeys(stages, _by_rows(choices, weight, bias, made))
    return bound


def bind_linear_stage(table: OperatorTable, context: OperatorKey, weight: Weight, bias: Tensor | None) -> Linear:
    """As `bind_linear`, for the one stage that the context names."""
    context = replace(context, weight=weight.format)
    choices = choices_by_rows(table, context, weight, Hardware.of(weight.device))
    check_one_copy(context, weight, choices)
    return _by_rows(choices, weight, bias, {})


def plain_linears(table: OperatorTable | None, weight: Weight) -> bool:
    """True where a table keeps weights of vision towers on a CPU as they lie, as graphs that are traced need them."""
    return table is not None and weight.device.type == "cpu" and table.forces("linear", "gemm")


def choices_by_rows(table: OperatorTable, context: OperatorKey, weight: Weight, hardware: Hardware) -> list[Choice]:
    """The choice for each class of rows. context: with its stage and the weight's format."""
    found = []
    for rows in ROW_CLASSES:
        _, shape_sig = SIGNATURES["linear"](weight, None, rows)
        found.append(table.choose(replace(context, shape_sig=shape_sig), hardware, weight.dtype))
    return found


def check_one_copy(context: OperatorKey, weight: Weight, choices: Sequence[Choice]) -> None:
    """ConfigError for a quantised weight that would be prepared more than once."""
    why = {choice.implementation.impl_id: choice.reason for choice in choices}
    if weight.format == FLOAT or len(why) == 1:
        return
    outputs, inputs = weight.shape
    named = "; ".join(f"{impl_id} ({each})" for impl_id, each in why.items())
    raise ConfigError(
        f"operators: linear {context.layer_role} of {context.model_name} [{outputs}, {inputs}]: each implementation "
        f"keeps its own copy of a weight of format {weight.format}, and several are chosen by stage or rows: {named}. "
        "Name one for all stages and rows; if `edgeflow tune` wrote the file, run `edgeflow tune` again with it"
    )


def _by_rows(choices: Sequence[Choice], weight: Weight, bias: Tensor | None, made: dict[str, Linear]) -> Linear:
    """made: implementations of this weight by name, to which new ones are added."""
    by_class = [_made(choice, weight, bias, made) for choice in choices]
    return by_class[0] if len(set(by_class)) == 1 else ByRows(by_class)


def _made(choice: Choice, weight: Weight, bias: Tensor | None, made: dict[str, Linear]) -> Linear:
    """The chosen implementation, made once; further sets of parameters share the weight of the first one where they
    can. Its kernels are compiled here, as no warm-up runs every number of rows; on a CPU they are interpreted.
    """
    impl_id = choice.implementation.impl_id
    name = f"{impl_id} {choice.params}"
    if name not in made:
        first = made.get(impl_id)
        retuned: Callable[..., Linear] | None = getattr(first, "retuned", None)
        linear = retuned(**choice.params) if retuned is not None else choice.load()(weight, bias)
        if isinstance(linear, Compiled) and weight.device.type != "cpu":
            linear.compile(weight.dtype)
        made[name] = linear
        made.setdefault(impl_id, linear)
    return made[name]
