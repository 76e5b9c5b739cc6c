"""A decoder block in float32, layer by layer: the naive twin of models/llama.py, which the search runs and modifies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

QUERY, KEY, VALUE = "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"
OUTPUT = "self_attn.o_proj"
GATE, UP, DOWN = "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"
LINEARS = (QUERY, KEY, VALUE, OUTPUT, GATE, UP, DOWN)
INPUT_NORM, POST_NORM = "input_layernorm", "post_attention_layernorm"
QUERY_NORM, KEY_NORM = "self_attn.q_norm", "self_attn.k_norm"


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockShape:
    """The shape of every block of a decoder."""

    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    gelu: bool = False
    """The gate is a GELU (tanh), not a SiLU."""
    plus_one: bool = False
    """Norms are stored minus one (Gemma)."""
    causal: bool = True
    """A row does not see later rows. Otherwise every row sees all rows except the last `closing` ones, which only
    these rows see (SmolVLA's state).
    """
    closing: int = 0
    outside: bool = False
    """Other modules read the values too (the expert of a flow policy)."""

    def mask(self, rows: int) -> Tensor | None:
        """The rows that each row sees, bool [L, L]; None if that is all rows or all earlier ones."""
        if self.causal or not self.closing:
            return None
        seen = torch.ones(rows, rows, dtype=torch.bool)
        seen[: rows - self.closing, rows - self.closing :] = False
        return seen


@dataclass(frozen=True, slots=True, eq=False)
class Rotation:
    """Rotary embedding of the positions from 0: cos and sin [positions, 1, D/2]."""

    cos: Tensor
    sin: Tensor

    @classmethod
    def of(cls, frequencies: Tensor, positions: int) -> Rotation:
        """The rotation for frequencies [D/2], float32."""
        angles = torch.arange(positions, dtype=torch.float32)[:, None, None] * frequencies
        return cls(angles.cos(), angles.sin())

    def __call__(self, x: Tensor) -> Tensor:
        """From [B, L, n, D] to [B, L, n, D]; pairs are (i, i + D/2)."""
        a, b = x.chunk(2, -1)
        cos, sin = self.cos[: x.shape[1]], self.sin[: x.shape[1]]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


@dataclass(frozen=True, slots=True, eq=False)
class BlockRun:
    """One pass through a block."""

    hidden: Tensor
    """[B, L, E]: the output of the block."""
    inputs: Mapping[str, Tensor]
    """The inputs of each linear, [B, L, width]."""


@dataclass(frozen=True, slots=True, eq=False)
class DecoderBlock:
    """A block."""

    shape: BlockShape
    tensors: Mapping[str, Tensor]
    """float32, by their published names relative to the block (`self_attn.q_proj.weight`, ...)."""

    def weight(self, linear: str) -> Tensor:
        """The weight of a linear, [N, E]."""
        return self.tensors[f"{linear}.weight"]

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> DecoderBlock:
        """The block with some tensors replaced."""
        return replace(self, tensors={**self.tensors, **tensors})

    def linear(self, name: str, x: Tensor) -> Tensor:
        """Apply a linear: from [..., E] to [..., N]."""
        return F.linear(x, self.weight(name), self.tensors.get(f"{name}.bias"))

    def run(self, hidden: Tensor, rotation: Rotation) -> BlockRun:
        """Run the block on hidden rows [B, L, E]."""
        x = self.norm(INPUT_NORM, hidden)
        mixed = self.heads(x, rotation)
        hidden = hidden + self.linear(OUTPUT, mixed)
        y = self.norm(POST_NORM, hidden)
        inner = self.gated(y)
        inputs = {QUERY: x, KEY: x, VALUE: x, OUTPUT: mixed, GATE: y, UP: y, DOWN: inner}
        return BlockRun(hidden + self.linear(DOWN, inner), inputs)

    def attention(self, x: Tensor, rotation: Rotation) -> Tensor:
        """The attention after its norm, with the output projection: from [B, L, E] to [B, L, E]."""
        return self.linear(OUTPUT, self.heads(x, rotation))

    def mlp(self, x: Tensor) -> Tensor:
        """The MLP after its norm: from [B, L, E] to [B, L, E]."""
        return self.linear(DOWN, self.gated(x))

    def heads(self, x: Tensor, rotation: Rotation) -> Tensor:
        """The outputs of all heads: from [B, L, E] to [B, L, H * D]."""
        q, k, v = (self.linear(name, x).view(*x.shape[:-1], -1, self.shape.head_dim) for name in (QUERY, KEY, VALUE))
        if f"{QUERY_NORM}.weight" in self.tensors:
            q, k = self.norm(QUERY_NORM, q), self.norm(KEY_NORM, k)
        shared = self.shape.heads // self.shape.kv_heads
        rotated = (rotation(q), rotation(k).repeat_interleave(shared, 2), v.repeat_interleave(shared, 2))
        q, k, v = (each.transpose(1, 2) for each in rotated)
        mask, causal = self.shape.mask(x.shape[1]), self.shape.causal
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal).transpose(1, 2).flatten(2)

    def gated(self, x: Tensor) -> Tensor:
        """The input of the down projection: from [B, L, E] to [B, L, F]."""
        gate = self.linear(GATE, x)
        return (F.gelu(gate, approximate="tanh") if self.shape.gelu else F.silu(gate)) * self.linear(UP, x)

    def norm(self, name: str, x: Tensor) -> Tensor:
        """An RMSNorm over the last dimension."""
        weight = self.tensors[f"{name}.weight"]
        unit = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.shape.eps)
        return unit * (weight + 1 if self.shape.plus_one else weight)
