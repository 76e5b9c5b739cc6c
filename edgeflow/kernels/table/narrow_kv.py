"""Implementations of the operators over KV slots of fewer bits (kernels/narrow_kv)."""

from __future__ import annotations

from dataclasses import replace

from edgeflow.kernels import packed_attention
from edgeflow.kernels.narrow_kv import int4_attention, int4_write, scaled
from edgeflow.kernels.table.implementations import ATTENTION_TILES, REFERENCE, Implementation, triton_kernel


def _scaled(kv: str, least_arch: int) -> tuple[Implementation, ...]:
    """A format of 8 bits with a scale per head and position. least_arch: of its kernels."""
    kernels = (
        triton_kernel("rope_write_kv", "rope_write_kv:rope_write_kv_scaled", {"d": 512}, kv=kv, block_h=(16, 8, 32)),
        triton_kernel(
            "packed_attention",
            "packed_attention:packed_attention_scaled",
            {"d": 256},
            kv=kv,
            **ATTENTION_TILES,
            splits=(0, 1, 4),
            apart=(0, 1),
        ),
    )
    return (
        Implementation(op_name="rope_write_kv", impl_id=REFERENCE, kv=kv, function=scaled.write),
        Implementation(op_name="rope_write_kv", impl_id="indexed", kv=kv, function=scaled.write_indexed),
        Implementation(
            op_name="packed_attention",
            impl_id="naive_gather",
            kv=kv,
            function=packed_attention.naive_gather,
            replayable=False,
        ),
        Implementation(
            op_name="packed_attention",
            impl_id="widened",
            kv=kv,
            function=scaled.attention_widened,
            replayable=False,
        ),
        *(replace(kernel, least_arch=least_arch) for kernel in kernels),
    )


NARROW_KV = (
    *_scaled("int8", 80),
    *_scaled("fp8", 89),
    Implementation(op_name="rope_write_kv", impl_id=REFERENCE, kv="int4", function=int4_write.reference),
    Implementation(
        op_name="rope_write_kv", impl_id="indexed", kv="int4", function=int4_write.indexed, replayable=False
    ),
    Implementation(op_name="rope_write_kv", impl_id="on_device", kv="int4", function=int4_write.on_device),
    Implementation(
        op_name="packed_attention",
        impl_id="widened",
        kv="int4",
        function=int4_attention.attention_widened,
        replayable=False,
        causal=True,
    ),
    replace(
        triton_kernel(
            "packed_attention",
            "packed_attention:packed_attention_int4",
            {"d": 256},
            kv="int4",
            block_m=(32, 64),
            num_warps=(0, 4, 8),
            num_stages=(2, 3),
            splits=(0, 1, 4),
            apart=(0, 1),
        ),
        causal=True,
    ),
)
