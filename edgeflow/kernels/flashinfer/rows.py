"""Operators on single rows by FlashInfer: norms, SwiGLU and RoPE. Signatures as in the operators' own files."""

from __future__ import annotations

from functools import partial

import flashinfer
import torch
from torch import Tensor

from edgeflow.kernels.kv.formats import DenseLayer
from edgeflow.kernels.rope_write_kv import RowPlaces


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [L_Q, E] or [L_Q, n, E]"""
    normed: Tensor = flashinfer.rmsnorm(x, weight, eps)
    return normed


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """FlashInfer's fused add, in place: the sum into `residual`, its norm into `x`."""
    flashinfer.fused_add_rmsnorm(x, residual, weight, eps)
    return x, residual


def swiglu(gate_up: Tensor) -> Tensor:
    """[n, 2F] → [n, F]"""
    gated: Tensor = flashinfer.silu_and_mul(gate_up)
    return gated


def rope_write_kv(qkv: Tensor, heads: int, kv_heads: int, rows: RowPlaces, layer: DenseLayer) -> Tensor:
    """FlashInfer looks cosines and sines up by position. Its table has one line per row of the pass, so that rows of
    any positions (M-RoPE) rotate; keys and values are then copied to their places."""
    count, width = qkv.shape[0], layer.keys.shape[-1]
    q, k, v = torch.split(qkv, [heads * width, kv_heads * width, kv_heads * width], dim=1)
    places, table = rows.kept("flashinfer table", partial(_table, rows))
    q, k = flashinfer.apply_rope_with_cos_sin_cache(places, q, k, head_size=width, cos_sin_cache=table, is_neox=True)
    layer.keys.flatten(0, 1).index_copy_(0, rows.flat, k.view(count, kv_heads, width))
    layer.values.flatten(0, 1).index_copy_(0, rows.flat, v.reshape(count, kv_heads, width))
    turned: Tensor = q.view(count, heads, width)
    return turned


def _table(rows: RowPlaces) -> tuple[Tensor, Tensor]:
    """FlashInfer looks up cosines and sines by position: here the position of a row is its number in the pass, so that
    any positions (M-RoPE) are served. [L_Q] int64, and [L_Q, D] float32: cosines, then sines."""
    half = rows.sin.shape[-1]
    table = torch.cat([rows.cos[:, 0, :half], rows.sin[:, 0]], dim=1).float()
    return torch.arange(len(table), device=table.device), table
