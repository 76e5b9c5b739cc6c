"""Problems of the operators over latent KV slots, made from those over dense ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from edgeflow.kernels.kv.formats import LATENT
from edgeflow.kernels.kv.layout import Span
from edgeflow.kernels.kv.sees import Sees
from edgeflow.kernels.kv.slots import KVSlots
from edgeflow.lab.trials import cases
from edgeflow.lab.trials.cases import Case, Heads, Numbers, Problem


def rope_write_kv(spans: Sequence[Span], heads: Heads, rotary: int) -> Case:
    """rotary: numbers of a head that are rotated, its last ones."""
    dense = cases.rope_write_kv(spans, Heads(heads.query, heads.kv, rotary))

    def build(make: Numbers) -> Problem:
        *_, rows, rotated = dense.build(make).arguments
        qk = make.normal(len(rows.flat), (heads.query + heads.kv) * heads.width)
        slots, capacity = rotated.keys.shape[:2]
        shape = 1, 1, slots, capacity, heads.kv, heads.width
        layer = LATENT.layer((make.poison(*shape),), 0)
        arguments = qk, heads.query, heads.kv, rows, layer
        return Problem(arguments, lambda q: (q, layer.keys), cold_bytes=layer.keys.nbytes)

    return replace(dense, build=build, kv=LATENT.name)


def packed_attention(spans: Sequence[Span], heads: Heads, sees: Sequence[Sees] | None = None) -> Case:
    """sees: what the rows of each span see."""
    dense = cases.packed_attention(spans, heads, 1, sees)

    def build(make: Numbers) -> Problem:
        layout, wide = dense.build(make).arguments
        kv = KVSlots(
            layers=1,
            slots=wide.slots,
            capacity=wide.capacity,
            kv_heads=heads.kv,
            head_dim=heads.width,
            dtype=wide.dtype,
            device=wide.data.device,
            format=LATENT,
        )
        kv.data.copy_(wide.data[:, :1])
        q = make.normal(len(layout.row_slot), heads.query, heads.width)
        return Problem((layout, kv), lambda attend: (attend(q, kv.layer(0)),), planned=True, cold_bytes=kv.nbytes)

    return replace(dense, build=build, kv=LATENT.name)
