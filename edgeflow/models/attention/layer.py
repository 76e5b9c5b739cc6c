"""The attention of a layer as a value. A decoder knows what is written and read, not how it is projected."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from torch import Tensor

from edgeflow.kernels.kv.formats import KVFormat
from edgeflow.kernels.linear import Linear
from edgeflow.kernels.weights import Weight
from edgeflow.models.attention.operators import Operators, PassOperators
from edgeflow.models.checkpoint import Weights

BindLinear = Callable[[str, Weight, "Tensor | None"], Mapping[str, Linear]]
"""(role, weight, bias) → the linear of each stage"""


class LayerAttention(Protocol):
    """One layer in one stage: the computations before and after attention over its slots."""

    def write(self, x: Tensor, shared: PassOperators, store: Any) -> Tensor:
        """Normed rows [L_Q, E] → the queries [L_Q, H, D] to attend with; the slots hold the rows' KV afterwards."""
        ...

    def finish(self, attended: Tensor) -> Tensor:
        """Attended rows [n, H, D] → [n, E]. They may be some of the rows that were written."""
        ...


class AttentionForm(Protocol):
    """The form of attention that all layers of a model have."""

    @property
    def kv_format(self) -> KVFormat:
        """The format in which slots hold the model's own numbers."""
        ...

    @property
    def rotary(self) -> int:
        """Numbers of a head that are rotated by the position."""
        ...

    @property
    def linears(self) -> Mapping[str, tuple[int, int]]:
        """Outputs and inputs of each projection that is a linear, by its published name."""
        ...

    @property
    def absorbed(self) -> Mapping[str, tuple[int, int]]:
        """Outputs and inputs of each projection that is held in floats and multiplied head by head, by its name."""
        ...

    @property
    def row_numbers(self) -> int:
        """Intermediate numbers of a row, all at once."""
        ...

    def of_stages(
        self, weights: Weights, linear: BindLinear, operators: Mapping[str, Operators]
    ) -> Mapping[str, LayerAttention]:
        """A layer's attention in each stage. weights: those below `model.layers.<index>.self_attn.`"""
        ...
