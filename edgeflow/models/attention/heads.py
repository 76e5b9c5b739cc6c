"""Grouped-query attention: H heads of queries share KH heads of keys and values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from edgeflow.kernels.kv.formats import DENSE, KVFormat, KVLayer
from edgeflow.kernels.linear import Linear
from edgeflow.models.attention.operators import BindLinear, Operators, PassOperators
from edgeflow.models.checkpoint import Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedHeads:
    """The sizes of grouped-query attention."""

    hidden: int
    """E, the width of the model."""
    heads: int
    """H, query heads."""
    kv_heads: int
    """KH, key-value heads."""
    head_dim: int
    """D, the width of a head."""
    bias: bool
    """True where queries, keys and values have a bias."""
    norm: bool
    """True where the queries and keys of each head are normed, with `eps`."""
    eps: float
    inputs: int = 0
    """The width of the rows that are projected to queries, keys and values; 0 for E."""

    @property
    def kv_format(self) -> KVFormat:
        return DENSE

    @property
    def rotary(self) -> int:
        return self.head_dim

    @property
    def linears(self) -> dict[str, tuple[int, int]]:
        """Outputs and inputs of each projection by name, the fused ones first."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        inputs = self.inputs or self.hidden
        read = {name: (count, inputs) for name, count in (("q_proj", q), ("k_proj", kv), ("v_proj", kv))}
        return {**read, "o_proj": (self.hidden, q)}

    @property
    def absorbed(self) -> dict[str, tuple[int, int]]:
        return {}

    @property
    def row_numbers(self) -> int:
        """Queries, keys and values as projected and as rotated, and the attended queries."""
        return 2 * (self.heads + self.kv_heads) * self.head_dim

    def of_stages(
        self, weights: Weights, linear: BindLinear, operators: Mapping[str, Operators]
    ) -> dict[str, GroupedAttention]:
        """A layer's attention in each stage; projections that read the same rows are fused."""
        q, *kv, o = (weights.linear(name, *shape) for name, shape in self.linears.items())
        biased = {f"{name}_proj": self.linears[f"{name}_proj"] for name in "qkv"} if self.bias else {}
        bias = [weights.take(f"{name}.bias", outputs) for name, (outputs, _) in biased.items()]
        norms = tuple(weights.take(f"{name}_norm.weight", self.head_dim) for name in "qk") if self.norm else None
        qkv = linear("qkv", q.cat(kv), torch.cat(bias) if bias else None)
        output = linear("output", o, None)
        return {
            stage: GroupedAttention(
                sizes=self, qkv=qkv[stage], norms=norms, output=output[stage], operators=operators[stage]
            )
            for stage in operators
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedAttention:
    """The attention of one layer."""

    sizes: GroupedHeads
    qkv: Linear
    """[(H + 2 KH) D, inputs]."""
    norms: tuple[Tensor, ...] | None
    """The norms of queries and keys [D]."""
    output: Linear
    """[E, H D]."""
    operators: Operators

    def write(self, x: Tensor, shared: PassOperators, store: KVLayer) -> Tensor:
        """Rotated queries [L_Q, H, D]; keys and values are written to the slots."""
        qkv = self.qkv(x)
        if self.norms is not None:
            qkv = self._norm_heads(qkv, *self.norms)
        return shared.write(qkv, self.sizes.heads, self.sizes.kv_heads, shared.rows, store)

    def finish(self, attended: Tensor) -> Tensor:
        """The output projection of all heads."""
        return self.output(attended.flatten(1))

    def _norm_heads(self, qkv: Tensor, q_norm: Tensor, k_norm: Tensor) -> Tensor:
        """Norm each head's query and key; values are unchanged."""
        sizes, operators = self.sizes, self.operators
        heads = qkv.view(qkv.shape[0], -1, sizes.head_dim)
        q, k, v = torch.split(heads, [sizes.heads, *[sizes.kv_heads] * 2], dim=1)
        q, k = operators.query_norm(q, q_norm, sizes.eps), operators.key_norm(k, k_norm, sizes.eps)
        return torch.cat([q, k, v], 1).flatten(1)
