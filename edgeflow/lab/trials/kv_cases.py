"""The problems of KV in 4 bits, those over latent slots, which are derived from the ones over dense slots, and those of
long contexts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from edgeflow.kernels.kv.formats import DENSE, INT4, LATENT
from edgeflow.kernels.kv.int4 import GROUP, Grid, packed
from edgeflow.kernels.kv.layout import Span
from edgeflow.kernels.kv.visibility import Visibility
from edgeflow.lab.trials import cases
from edgeflow.lab.trials.cases import Heads, Numbers, Outputs, Problem, TrialCase, empty_slots, filled, places


def rope_write_int4(spans: Sequence[Span], heads: Heads) -> TrialCase:
    """Compares what the last row of each span reads, the exact keys from the first group of each on, and the newest.

    The spans lie after groups that other passes have begun.
    """

    def build(make: Numbers) -> Problem:
        capacity, rows = places(make, spans, heads, False)
        qkv = make.normal(len(rows.flat), (heads.query + 2 * heads.kv) * heads.width)
        kv = empty_slots(make, heads, INT4, slots=1 + max(span.slot for span in spans), capacity=capacity, layers=1)
        layer = kv.layer(0)
        layer.newest.copy_(make.normal(*layer.newest.shape))
        ends = [(span.slot, span.start + span.length) for span in spans]

        def outputs(q: Tensor) -> Outputs:
            read = [layer.read(slot, slice(end), end - 1) for slot, end in ends]
            exact = [layer.exact[span.slot, span.start // GROUP * GROUP : span.start + span.length] for span in spans]
            return q, *(torch.cat(each) for each in zip(*read, strict=True)), torch.cat(exact), layer.newest

        return Problem((qkv, heads.query, heads.kv, rows, layer), outputs, cold_bytes=kv.data.nbytes)

    return TrialCase(op_name="rope_write_kv", build=build, kv=INT4.name)


def attention_int4(spans: Sequence[Span], heads: Heads) -> TrialCase:
    """The exact keys and the steps of values that nothing may read are NaN."""

    def build(make: Numbers) -> Problem:
        layout, wide = filled(make, spans, heads, 1, None)
        q = make.normal(len(layout.row_slot), heads.query, heads.width)
        kv = empty_slots(make, heads, INT4, slots=wide.slots, capacity=wide.capacity, layers=1)
        layer, (keys, values) = kv.layer(0), wide.data[0]
        layer.exact.fill_(torch.nan)[:, : wide.capacity] = keys
        full = wide.capacity // GROUP * GROUP
        groups = keys[:, :full].nan_to_num(7.0).unflatten(1, (-1, GROUP))
        grid = Grid.over(groups, 2)
        layer.keys[:, :full] = packed(grid.codes(groups)).flatten(1, 2)
        layer.key_grids[:, :, : full // GROUP] = torch.stack([grid.step, grid.offset]).squeeze(3)
        grid = Grid.over(values, -1)
        layer.values.copy_(packed(grid.codes(values)))
        layer.value_grids.copy_(torch.stack([grid.step, grid.offset])[..., 0])
        return Problem((layout, kv), lambda attend: (attend(q, layer),), planned=True, cold_bytes=kv.nbytes)

    return TrialCase(op_name="packed_attention", build=build, kv=INT4.name)


def rope_write_latent(spans: Sequence[Span], heads: Heads, rotary: int) -> TrialCase:
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


def attention_latent(spans: Sequence[Span], heads: Heads, visibility: Sequence[Visibility] | None = None) -> TrialCase:
    """visibility: the places that the rows of each span see."""
    dense = cases.packed_attention(spans, heads, 1, visibility)

    def build(make: Numbers) -> Problem:
        layout, wide = dense.build(make).arguments
        kv = empty_slots(make, heads, LATENT, slots=wide.slots, capacity=wide.capacity, layers=1)
        kv.data.copy_(wide.data[:, :1])
        q = make.normal(len(layout.row_slot), heads.query, heads.width)
        return Problem((layout, kv), lambda attend: (attend(q, kv.layer(0)),), planned=True, cold_bytes=kv.nbytes)

    return replace(dense, build=build, kv=LATENT.name)


def spiked_attention(span: Span, heads: Heads) -> TrialCase:
    """Rows to which but one of every 64 keys matters, each head of queries another one, so that the loss of any shows.

    Which one it is moves on by a place with each 64 keys. Their weights are equal, and their values 1 or -1 in one
    number each, the next with each 64 keys, so that sums are exact.
    """

    def build(make: Numbers) -> Problem:
        layout, kv = filled(make, [span], heads, 1, None)
        keys, values = kv.data[0, :, span.slot, : span.start + span.length]
        place = torch.arange(len(keys), device=make.device)
        keys[..., :64] = 0.0
        keys[place, :, (place + place // 64) % 64] = 8.0
        sign = values[..., 0].sign()
        values.zero_()[place, :, place // 64 % heads.width] = sign
        seen = torch.arange(heads.query, device=make.device)
        q = make.given(torch.zeros(span.length, heads.query, heads.width))
        q[:, seen, seen % 64] = 32.0 * math.sqrt(heads.width / 64)
        return Problem((layout, kv), lambda attend: (attend(q, kv.layer(0)),), planned=True, cold_bytes=kv.nbytes)

    return TrialCase(op_name="packed_attention", build=build, kv=DENSE.name)
