"""Multi-head latent attention (DeepSeek-V2): the keys and values of all heads follow from one short row per position.

A slot holds that row once: a latent of R numbers, normed, and a key of r numbers that is rotated by the position and
shared by all heads. The projection that makes a head's keys of latents is applied to its query instead, and the one
that makes its values to the attended row. So attention runs over the slots as they are: H heads of queries, one of
keys, and the values are the keys.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from edgeflow.kernels.kv.formats import LATENT, KVFormat, KVLayer
from edgeflow.kernels.linear import Linear
from edgeflow.models.attention.operators import BindLinear, Operators, PassOperators
from edgeflow.models.checkpoint import Weights

NORM_EPS = 1e-6
"""Epsilon of the norms of latents and queries, whatever that of the model's other norms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentSizes:
    """The sizes of latent attention as a checkpoint states them."""

    rank: int
    """R, the width of a latent."""
    rotary: int
    """r, the width of the rotated part of each query and of the shared key."""
    plain: int
    """The width of the part of a head's query and key that is not rotated."""
    value: int
    """The width of a head's value."""
    query_rank: int = 0
    """The width between the two projections of queries; 0 where there is one projection."""
    paired: bool = True
    """True where neighbours are rotated together, as published; otherwise i and i + r/2."""

    @property
    def width(self) -> int:
        """D, the width of a position in a slot."""
        return self.rank + self.rotary

    @property
    def query(self) -> int:
        """The width of a head's query as it is projected."""
        return self.plain + self.rotary


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentHeads:
    """The form of latent attention."""

    hidden: int
    """E."""
    heads: int
    """H."""
    sizes: LatentSizes
    scale: float
    """The scale of the product of a query and a key."""

    @property
    def kv_format(self) -> KVFormat:
        return LATENT

    @property
    def rotary(self) -> int:
        return self.sizes.rotary

    @property
    def linears(self) -> dict[str, tuple[int, int]]:
        """Outputs and inputs of each projection by name."""
        sizes, queries = self.sizes, self.heads * self.sizes.query
        in_two = {"q_a_proj": (sizes.query_rank, self.hidden), "q_b_proj": (queries, sizes.query_rank)}
        return {
            **(in_two if sizes.query_rank else {"q_proj": (queries, self.hidden)}),
            "kv_a_proj_with_mqa": (sizes.width, self.hidden),
            "o_proj": (self.hidden, self.heads * sizes.value),
        }

    @property
    def absorbed(self) -> dict[str, tuple[int, int]]:
        """Outputs and inputs of the projection that makes the keys and values of all heads from a latent, by name."""
        return {"kv_b_proj": (self.heads * (self.sizes.plain + self.sizes.value), self.sizes.rank)}

    @property
    def row_numbers(self) -> int:
        """Queries as projected, scaled, as they attend and attended, twice that for their latents, and the values."""
        sizes = self.sizes
        queries = 2 * sizes.query + 4 * sizes.width + 2 * sizes.value
        return sizes.query_rank + self.heads * queries + 3 * sizes.width

    def of_stages(
        self, weights: Weights, linear: BindLinear, operators: Mapping[str, Operators]
    ) -> dict[str, LatentAttention]:
        """A layer's attention in each stage; projections that read the same rows are fused.

        That of keys and values is held in floats: its halves are multiplied head by head.
        """
        sizes = self.sizes
        read = {name: weights.linear(name, *shape) for name, shape in (self.linears | self.absorbed).items()}
        queries = read["q_a_proj" if sizes.query_rank else "q_proj"]
        first = linear("qkv", queries.cat([read["kv_a_proj_with_mqa"]]), None)
        second = linear("query", read["q_b_proj"], None) if sizes.query_rank else None
        query_norm = weights.take("q_a_layernorm.weight", sizes.query_rank) if sizes.query_rank else None
        norm = weights.take("kv_a_layernorm.weight", sizes.rank)
        output = linear("output", read["o_proj"], None)
        kv = read["kv_b_proj"].floats().view(self.heads, sizes.plain + sizes.value, sizes.rank)
        keys, values = torch.split(kv, [sizes.plain, sizes.value], dim=1)
        return {
            stage: LatentAttention(
                form=self,
                first=first[stage],
                query_norm=query_norm,
                second=second[stage] if second is not None else None,
                norm=norm,
                keys=keys,
                values=values.transpose(1, 2),
                output=output[stage],
                operators=operators[stage],
            )
            for stage in operators
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """The attention of one layer."""

    form: LatentHeads
    first: Linear
    """The projection to queries, or to what they are projected from, and to the row of the slot: [.. + D, E]."""
    query_norm: Tensor | None
    """The norm between the two projections of queries; None where `first` gives queries."""
    second: Linear | None
    """The second projection of queries; None where `first` gives queries."""
    norm: Tensor
    """[R]: the norm of the latent."""
    keys: Tensor
    """[H, plain, R]: the projection of a part of a query, so that it can be compared with latents."""
    values: Tensor
    """[H, R, value]: the projection of attended latents to values."""
    output: Linear
    """[E, H value]."""
    operators: Operators

    def write(self, x: Tensor, shared: PassOperators, store: KVLayer) -> Tensor:
        """Queries [L_Q, H, D] over what the slots hold; a row of D numbers is written to the slots."""
        form, sizes = self.form, self.form.sizes
        projected = self.first(x)
        q, latent, turned = torch.split(projected, [projected.shape[1] - sizes.width, sizes.rank, sizes.rotary], dim=1)
        plain, rotary = torch.split(self._queries(q), [sizes.plain, sizes.rotary], dim=2)
        rows = x.new_empty(len(x), form.heads + 1, sizes.width)  # queries, and the row of the slot
        rows[:, :-1, : sizes.rank] = torch.bmm(plain.transpose(0, 1), self.keys).transpose(0, 1)
        rows[:, :-1, sizes.rank :] = self._in_halves(rotary)
        rows[:, -1, : sizes.rank] = self.operators.key_norm(latent, self.norm, NORM_EPS)
        rows[:, -1, sizes.rank :] = self._in_halves(turned)
        return shared.write(rows.flatten(1), form.heads, 1, shared.rows, store)

    def finish(self, attended: Tensor) -> Tensor:
        """Each head's value of its attended latent, and their projection."""
        latents = attended[..., : self.form.sizes.rank].transpose(0, 1)
        return self.output(torch.bmm(latents, self.values).transpose(0, 1).flatten(1))

    def _queries(self, q: Tensor) -> Tensor:
        """[L_Q, H, plain + rotary], times what makes scores of them that attention divides by the root of D."""
        form = self.form
        if self.second is not None and self.query_norm is not None:
            q = self.second(self.operators.query_norm(q, self.query_norm, NORM_EPS))
        return (q * (form.scale * math.sqrt(form.sizes.width))).view(len(q), form.heads, form.sizes.query)

    def _in_halves(self, x: Tensor) -> Tensor:
        """[.., r]: neighbours that are rotated together are moved to i and i + r/2."""
        if not self.form.sizes.paired:
            return x
        return x.view(*x.shape[:-1], self.form.sizes.rotary // 2, 2).transpose(-1, -2).flatten(-2)
