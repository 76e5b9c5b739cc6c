"""FUSEDROPEANDWRITEKV (ActionFlow section 3.3): rotate queries and keys, put keys and values into their slots.

Half-split (NeoX) rotary embedding: the pair (i, i + D/2) turns by position * theta^(-2i/D).
qkv [L_Q, (H + 2 KH) D]; cos, sin [L_Q, D] of the rows' positions; returns q [L_Q, H, D].
"""

from __future__ import annotations

import torch
from torch import Tensor

from edgeflow.kernels.layout import PackedLayout


def rotary_table(positions: int, head_dim: int, theta: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """cos and signed sin [positions, D] in float32; sin's first half is negated, so that rotation is two products."""
    frequencies = 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32, device=device) / head_dim)
    angles = torch.arange(positions, dtype=torch.float32, device=device)[:, None] * frequencies
    return torch.cat([angles.cos()] * 2, dim=-1), torch.cat([-angles.sin(), angles.sin()], dim=-1)


def reference(
    qkv: Tensor, heads: int, kv_heads: int, cos: Tensor, sin: Tensor, kv: tuple[Tensor, Tensor], layout: PackedLayout
) -> Tensor:
    """Row by row, pair by pair."""
    q, k, v = _split(qkv, heads, kv_heads)
    half = q.shape[-1] // 2
    turned = []
    for x in (q, k):
        a, b = x[..., :half], x[..., half:]
        c, s = cos[:, None, half:], sin[:, None, half:]
        turned.append(torch.cat([a * c - b * s, b * c + a * s], dim=-1))
    for row, (slot, position) in enumerate(zip(layout.row_slot.tolist(), layout.row_position.tolist(), strict=True)):
        kv[0][slot, position] = turned[1][row]
        kv[1][slot, position] = v[row]
    return turned[0]


def indexed(
    qkv: Tensor, heads: int, kv_heads: int, cos: Tensor, sin: Tensor, kv: tuple[Tensor, Tensor], layout: PackedLayout
) -> Tensor:
    """Queries and keys turn together; one indexed write each for keys and values."""
    rows = qkv.shape[0]
    split = qkv.view(rows, heads + 2 * kv_heads, -1)
    qk = split[:, : heads + kv_heads]
    half = qk.shape[-1] // 2
    turned = qk * cos[:, None] + qk.roll(half, -1) * sin[:, None]
    kv[0].index_put_((layout.row_slot, layout.row_position), turned[:, heads:])
    kv[1].index_put_((layout.row_slot, layout.row_position), split[:, heads + kv_heads :])
    return turned[:, :heads]


def _split(qkv: Tensor, heads: int, kv_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    split = qkv.view(qkv.shape[0], heads + 2 * kv_heads, -1)
    return split[:, :heads], split[:, heads : heads + kv_heads], split[:, heads + kv_heads :]
