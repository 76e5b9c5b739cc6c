"""Every implementation of every operator, and which serves by default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from edgeflow.kernels import (
    greedy,
    layer_norm,
    memory,
    packed_attention,
    rms_norm,
    rope_write_kv,
    slots_in_place,
    swiglu,
    varlen_attention,
)
from edgeflow.kernels.kv import shift_kv
from edgeflow.kernels.table.dimensions import KINDS
from edgeflow.kernels.table.implementations import (
    ATTENTION_TILES,
    REFERENCE,
    Implementation,
    of_flashinfer,
    triton_kernel,
)
from edgeflow.kernels.table.latent_kv import LATENT_KV
from edgeflow.kernels.table.linears import LINEARS
from edgeflow.kernels.table.narrow_kv import NARROW_KV

BUILT_IN = (
    Implementation(op_name="rms_norm", impl_id=REFERENCE, function=rms_norm.reference),
    Implementation(op_name="rms_norm", impl_id="fused", function=rms_norm.fused),
    triton_kernel("rms_norm", "rms_norm", {"e": 1 << 16}, num_warps=(4, 8, 16)),
    of_flashinfer("rms_norm", "rows:rms_norm", {}),
    Implementation(op_name="add_rms_norm", impl_id=REFERENCE, function=rms_norm.add_reference),
    Implementation(op_name="add_rms_norm", impl_id="fused", function=rms_norm.add_fused),
    triton_kernel("add_rms_norm", "rms_norm", {"e": 1 << 16}, num_warps=(4, 8, 16)),
    of_flashinfer("add_rms_norm", "rows:add_rms_norm", {}),
    Implementation(op_name="add_layer_norm", impl_id=REFERENCE, function=layer_norm.add_reference),
    Implementation(op_name="add_layer_norm", impl_id="fused", function=layer_norm.add_fused),
    triton_kernel("add_layer_norm", "layer_norm", {"e": 1 << 14}, num_warps=(4, 8, 2)),
    Implementation(op_name="rope_write_kv", impl_id=REFERENCE, kv="dense", function=rope_write_kv.reference),
    Implementation(op_name="rope_write_kv", impl_id="indexed", kv="dense", function=rope_write_kv.indexed),
    triton_kernel("rope_write_kv", "rope_write_kv", {"d": 512}, kv="dense", block_h=(16, 8, 32)),
    of_flashinfer("rope_write_kv", "rows:rope_write_kv", {"d": 64}, kv="dense"),
    Implementation(
        op_name="packed_attention", impl_id=REFERENCE, function=packed_attention.reference, replayable=False
    ),
    Implementation(op_name="packed_attention", impl_id="masked", function=packed_attention.masked),
    Implementation(
        op_name="packed_attention",
        impl_id="naive_gather",
        kv="dense",
        function=packed_attention.naive_gather,
        replayable=False,
    ),
    Implementation(
        op_name="packed_attention",
        impl_id="slots_in_place",
        kv="dense",
        function=slots_in_place.slots_in_place,
        choices={"tile": (slots_in_place.TILE, 0, 128)},
        replayable=False,
    ),
    triton_kernel(
        "packed_attention",
        "packed_attention",
        {"d": 256},
        kv="dense",
        **ATTENTION_TILES,
        splits=(0, 1, 4),
        apart=(0, 1),
    ),
    of_flashinfer(
        "packed_attention",
        "attention:packed_attention",
        {"d": 64},
        kv="dense",
        tensor_cores=(1, 0),
        apart=(0, 1),
    ),
    replace(
        of_flashinfer(
            "packed_attention", "attention:packed_attention_mixed", {"d": 64}, "flashinfer_mixed", kv="dense"
        ),
        replayable=False,
        causal=True,
    ),
    Implementation(op_name="varlen_attention", impl_id=REFERENCE, function=varlen_attention.reference),
    Implementation(op_name="varlen_attention", impl_id="sdpa", function=varlen_attention.sdpa),
    Implementation(
        op_name="varlen_attention",
        impl_id="products",
        function=varlen_attention.products,
        devices=frozenset({"cpu"}),
        dtypes=frozenset({torch.bfloat16}),
    ),
    triton_kernel("varlen_attention", "varlen_attention", {"d": 256}, kv="", **ATTENTION_TILES),
    Implementation(op_name="read_memory", impl_id=REFERENCE, function=memory.read_reference, replayable=False),
    Implementation(op_name="read_memory", impl_id="batched", function=memory.read_batched),
    Implementation(op_name="fold_memory", impl_id=REFERENCE, function=memory.fold_reference),
    Implementation(op_name="fold_memory", impl_id="batched", function=memory.fold_batched),
    Implementation(op_name="swiglu", impl_id=REFERENCE, function=swiglu.reference),
    Implementation(op_name="swiglu", impl_id="fused", function=swiglu.fused),
    triton_kernel("swiglu", "swiglu", {}, block=(1024, 512, 2048)),
    of_flashinfer("swiglu", "rows:swiglu", {"f": 8}),
    Implementation(op_name="shift_kv", impl_id=REFERENCE, function=shift_kv.reference),
    Implementation(op_name="shift_kv", impl_id="strided", function=shift_kv.strided),
    triton_kernel("shift_kv", "shift_kv", {}),
    Implementation(op_name="shift_kv_chain", impl_id=REFERENCE, function=shift_kv.chain_reference, replayable=False),
    Implementation(op_name="shift_kv_chain", impl_id="strided", function=shift_kv.chain_strided, replayable=False),
    Implementation(op_name="shift_kv_chain", impl_id="indexed", function=shift_kv.chain_indexed),
    triton_kernel("shift_kv_chain", "shift_kv", {}),
    Implementation(op_name="greedy", impl_id=REFERENCE, function=greedy.reference),
    Implementation(op_name="greedy", impl_id="reduced", function=greedy.reduced),
    triton_kernel("greedy", "greedy", {}, block=(4096, 2048, 8192)),
    *NARROW_KV,
    *LATENT_KV,
    *LINEARS,
)

BY_TORCH = ("shift_kv", "varlen_attention", "linear", "read_memory", "fold_memory")
"""Operators that torch's own functions serve on CUDA."""

DEFAULTS: Mapping[str, Mapping[str, str | tuple[str, ...]]] = {
    "": {
        "rms_norm": "fused",
        "add_rms_norm": "fused",
        "add_layer_norm": "fused",
        "rope_write_kv": "indexed",
        "packed_attention": ("slots_in_place", "widened"),
        "varlen_attention": "sdpa",
        "swiglu": "fused",
        "read_memory": "batched",
        "fold_memory": "batched",
        "shift_kv": "strided",
        "shift_kv_chain": "strided",
        "greedy": "reduced",
        "linear": "gemm",
    },
    "cpu": {"linear": "packed", "varlen_attention": "products"},
    "cuda": {
        **{op_name: "triton" for op_name in KINDS if op_name not in BY_TORCH},
        "rope_write_kv": ("on_device", "triton"),
    },
}
"""impl_id by hardware profile ("" is any) and operator; several where each serves other KV formats.

On CUDA torch's own operators serve as well as a kernel of ours would for a single move, for sequences of one length and
for GEMMs.
"""
