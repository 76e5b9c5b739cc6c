"""Every implementation of every operator, and which serves by default."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch

from edgeflow.kernels import linear, packed_attention, rope_write_kv, varlen_attention
from edgeflow.kernels import row_operators as rows
from edgeflow.kernels.awq import AWQ
from edgeflow.kernels.kv import memory, shift_kv
from edgeflow.kernels.narrow_kv import int4_attention, int4_write, scaled
from edgeflow.kernels.native import linear as native
from edgeflow.kernels.slots_in_place import TILE, slots_in_place
from edgeflow.kernels.table.dimensions import KINDS
from edgeflow.kernels.table.implementations import (
    ATTENTION_TILES,
    FLOAT_DTYPES,
    FLOATS,
    REFERENCE,
    STORED,
    Implementation,
    of_flashinfer,
    triton_kernel,
)
from edgeflow.kernels.weights import FLOAT

CPU, BFLOAT16 = frozenset({"cpu"}), frozenset({torch.bfloat16})
ROWS_OF_8_BITS = 1e-2
"""Deviation of products whose rows are in 8 bits with a scale per 32 inputs."""

SPLITS = {"splits": (0, 1, 4), "apart": (0, 1)}
"""Choices of a tile's parts along the keys, and of launches apart for large and small tiles."""
ROPE_BLOCKS = {"block_h": (16, 8, 32)}
INT4_TILES = {"block_m": (32, 64), "num_warps": (0, 4, 8), "num_stages": (2, 3)}


def _gathered(kv: str) -> Implementation:
    """Attention over slots of a format, copied into one buffer."""
    return Implementation("packed_attention", "naive_gather", packed_attention.naive_gather, kv=kv, replayable=False)


def _in_place(kv: str) -> Implementation:
    """Attention over slots of a format, read where they lie."""
    tiles = {"tile": (TILE, 0, 128)}
    return Implementation("packed_attention", "slots_in_place", slots_in_place, kv=kv, choices=tiles, replayable=False)


def _scaled(kv: str, least_arch: int) -> Iterator[Implementation]:
    """A format of 8 bits with a scale per head and position. least_arch: of its kernels."""
    yield Implementation("rope_write_kv", REFERENCE, scaled.write, kv=kv)
    yield Implementation("rope_write_kv", "indexed", scaled.write_indexed, kv=kv)
    yield _gathered(kv)
    yield Implementation("packed_attention", "widened", scaled.attention_widened, kv=kv, replayable=False)
    rope, attention = "rope_write_kv:rope_write_kv_scaled", "packed_attention:packed_attention_scaled"
    for kernel in (
        triton_kernel("rope_write_kv", rope, {"d": 512}, kv=kv, **ROPE_BLOCKS),
        triton_kernel("packed_attention", attention, {"d": 256}, kv=kv, **ATTENTION_TILES, **SPLITS),
    ):
        yield replace(kernel, least_arch=least_arch)


NARROW_KV = (
    *_scaled("int8", 80),
    *_scaled("fp8", 89),
    Implementation("rope_write_kv", REFERENCE, int4_write.reference, kv="int4"),
    Implementation("rope_write_kv", "indexed", int4_write.indexed, kv="int4", replayable=False),
    Implementation("rope_write_kv", "on_device", int4_write.on_device, kv="int4"),
    Implementation(
        "packed_attention", "widened", int4_attention.attention_widened, kv="int4", replayable=False, causal=True
    ),
    replace(
        triton_kernel(
            "packed_attention", "packed_attention:packed_attention_int4", {"d": 256}, kv="int4", **INT4_TILES, **SPLITS
        ),
        causal=True,
    ),
)

LATENT_KV = (
    Implementation("rope_write_kv", REFERENCE, rope_write_kv.latent_reference, kv="latent"),
    Implementation("rope_write_kv", "indexed", rope_write_kv.latent_indexed, kv="latent"),
    _gathered("latent"),
    _in_place("latent"),
)
"""On any device. All heads of queries share the one head of keys, which is wider than the tiles of `triton` and
`flashinfer` (576 numbers in published models, 256 at most there), so neither is one of them."""

LINEARS = (
    Implementation("linear", REFERENCE, linear.Reference),
    Implementation("linear", "gemm", linear.Gemm, weight=FLOAT),
    Implementation(
        "linear",
        "packed",
        linear.Packed,
        devices=CPU,
        dtypes=linear.packed_dtypes(),
        weight=FLOAT,
        absent=linear.no_onednn(),
    ),
    Implementation("linear", "dequantised", linear.Dequantised, devices=frozenset({"cpu", "cuda"}), weight=AWQ),
    replace(
        triton_kernel(
            "linear",
            "awq",
            {},
            block_m=(0, 16, 32, 64),
            block_n=(128, 64),
            splits=(0, 1, 4),
            num_warps=(0, 4, 8),
            num_stages=(4, 3),
        ),
        dtypes=FLOAT_DTYPES - {torch.float32},
        multiples={"n": 8, "e": 32},
        weight=AWQ,
    ),
    Implementation(
        "linear",
        "torch_int4",
        linear.TorchInt4,
        devices=CPU,
        dtypes=BFLOAT16,  # others have no fast product in torch
        multiples={"n": 16},
        weight=AWQ,
        absent=linear.no_int4_product(),
    ),
    Implementation(
        "linear",
        "native_int4",
        native.NativeInt4,
        devices=CPU,
        dtypes=frozenset(native.KINDS),
        weight=AWQ,
        deviation=ROWS_OF_8_BITS,
        absent=native.missing(),
    ),
    Implementation(
        "linear",
        "torch_int8",
        linear.TorchInt8,
        devices=CPU,
        weight="int8",
        made_from=STORED,
        absent=linear.no_int8_product(),
    ),
    Implementation(
        "linear",
        "native_int8",
        native.NativeInt8,
        devices=CPU,
        dtypes=frozenset(native.KINDS),
        multiples={"e": native.BLOCK},
        weight="int8",
        made_from=STORED,
        deviation=ROWS_OF_8_BITS,
        absent=native.missing(),
    ),
    Implementation(
        "linear", "int8", linear.Int8, devices=CPU, limits={"m": 1}, weight="int8", made_from=FLOATS, stage="decode"
    ),
    Implementation("linear", "fp8_emulated", linear.Fp8Emulated, devices=CPU, weight="fp8"),
    replace(
        triton_kernel("linear", "fp8", {"e": 1 << 16}),
        impl_id="fp8",
        dtypes=BFLOAT16,
        least_arch=89,
        multiples={"n": 16, "e": 16},
        weight="fp8",
        absent=linear.no_fp8_product(),
    ),
    Implementation(
        "linear",
        "cublasLt",
        "",
        devices=frozenset({"cuda"}),
        choices={"algo_index": (0,)},
        weight=FLOAT,
        absent="edgeflow has no binding of cuBLASLt",
    ),
)

BUILT_IN = (
    Implementation("rms_norm", REFERENCE, rows.rms_norm_reference),
    Implementation("rms_norm", "fused", rows.rms_norm_fused),
    triton_kernel("rms_norm", "row_operators", {"e": 1 << 16}, num_warps=(4, 8, 16)),
    of_flashinfer("rms_norm", "rows:rms_norm", {}),
    Implementation("add_rms_norm", REFERENCE, rows.add_rms_norm_reference),
    Implementation("add_rms_norm", "fused", rows.add_rms_norm_fused),
    triton_kernel("add_rms_norm", "row_operators", {"e": 1 << 16}, num_warps=(4, 8, 16)),
    of_flashinfer("add_rms_norm", "rows:add_rms_norm", {}),
    Implementation("add_layer_norm", REFERENCE, rows.add_layer_norm_reference),
    Implementation("add_layer_norm", "fused", rows.add_layer_norm_fused),
    triton_kernel("add_layer_norm", "row_operators", {"e": 1 << 14}, num_warps=(4, 8, 2)),
    Implementation("add_adaptive_norm", REFERENCE, rows.add_adaptive_norm_reference),
    Implementation("add_adaptive_norm", "fused", rows.add_adaptive_norm_fused),
    triton_kernel("add_adaptive_norm", "row_operators", {"e": 1 << 14}, num_warps=(4, 8, 2)),
    Implementation("rope_write_kv", REFERENCE, rope_write_kv.reference, kv="dense"),
    Implementation("rope_write_kv", "indexed", rope_write_kv.indexed, kv="dense"),
    triton_kernel("rope_write_kv", "rope_write_kv", {"d": 512}, kv="dense", **ROPE_BLOCKS),
    of_flashinfer("rope_write_kv", "rows:rope_write_kv", {"d": 64}, kv="dense"),
    Implementation("packed_attention", REFERENCE, packed_attention.reference, replayable=False),
    Implementation("packed_attention", "masked", packed_attention.masked),
    _gathered("dense"),
    _in_place("dense"),
    triton_kernel("packed_attention", "packed_attention", {"d": 256}, kv="dense", **ATTENTION_TILES, **SPLITS),
    of_flashinfer(
        "packed_attention", "attention:packed_attention", {"d": 64}, kv="dense", tensor_cores=(1, 0), apart=(0, 1)
    ),
    replace(
        of_flashinfer(
            "packed_attention", "attention:packed_attention_mixed", {"d": 64}, "flashinfer_mixed", kv="dense"
        ),
        replayable=False,
        causal=True,
    ),
    Implementation("varlen_attention", REFERENCE, varlen_attention.reference),
    Implementation("varlen_attention", "sdpa", varlen_attention.sdpa),
    Implementation("varlen_attention", "products", varlen_attention.products, devices=CPU, dtypes=BFLOAT16),
    triton_kernel("varlen_attention", "varlen_attention", {"d": 256}, kv="", **ATTENTION_TILES),
    Implementation("read_memory", REFERENCE, memory.read_reference, replayable=False),
    Implementation("read_memory", "batched", memory.read_batched),
    Implementation("fold_memory", REFERENCE, memory.fold_reference),
    Implementation("fold_memory", "batched", memory.fold_batched),
    Implementation("swiglu", REFERENCE, rows.swiglu_reference),
    Implementation("swiglu", "fused", rows.swiglu_fused),
    triton_kernel("swiglu", "row_operators", {}, block=(1024, 512, 2048)),
    of_flashinfer("swiglu", "rows:swiglu", {"f": 8}),
    Implementation("geglu", REFERENCE, rows.geglu_reference),
    Implementation("geglu", "fused", rows.geglu_fused),
    triton_kernel("geglu", "row_operators", {}, block=(1024, 512, 2048)),
    Implementation("shift_kv", REFERENCE, shift_kv.reference),
    Implementation("shift_kv", "strided", shift_kv.strided),
    triton_kernel("shift_kv", "shift_kv", {}),
    Implementation("shift_kv_chain", REFERENCE, shift_kv.chain_reference, replayable=False),
    Implementation("shift_kv_chain", "strided", shift_kv.chain_strided, replayable=False),
    Implementation("shift_kv_chain", "indexed", shift_kv.chain_indexed),
    triton_kernel("shift_kv_chain", "shift_kv", {}),
    Implementation("greedy", REFERENCE, rows.greedy_reference),
    Implementation("greedy", "reduced", rows.greedy_reduced),
    triton_kernel("greedy", "row_operators", {}, block=(4096, 2048, 8192)),
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
        "add_adaptive_norm": "fused",
        "rope_write_kv": "indexed",
        "packed_attention": ("slots_in_place", "widened"),
        "varlen_attention": "sdpa",
        "swiglu": "fused",
        "geglu": "fused",
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

On CUDA torch's own operators serve as well as a kernel would for a single move, for sequences of one length and
for GEMMs.
"""
