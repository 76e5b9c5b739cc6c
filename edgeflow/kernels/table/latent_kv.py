"""Implementations of the operators over latent KV slots (models/attention/latent.py), on any device.

All heads of queries share the one head of keys, which is wider than the tiles of `triton` and `flashinfer` (576 numbers
in published models, 256 at most there), so neither is one of them.
"""

from __future__ import annotations

from edgeflow.kernels import packed_attention, rope_write_kv, slots_in_place
from edgeflow.kernels.table.implementations import REFERENCE, Implementation

LATENT_KV = (
    Implementation(op_name="rope_write_kv", impl_id=REFERENCE, kv="latent", function=rope_write_kv.latent_reference),
    Implementation(op_name="rope_write_kv", impl_id="indexed", kv="latent", function=rope_write_kv.latent_indexed),
    Implementation(
        op_name="packed_attention",
        impl_id="naive_gather",
        kv="latent",
        function=packed_attention.naive_gather,
        replayable=False,
    ),
    Implementation(
        op_name="packed_attention",
        impl_id="slots_in_place",
        kv="latent",
        function=slots_in_place.slots_in_place,
        choices={"tile": (slots_in_place.TILE, 0, 128)},
        replayable=False,
    ),
)
