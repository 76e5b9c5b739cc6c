"""Implementations of operators that are a little wrong, by what is wrong with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from edgeflow.kernels import linear, packed_attention, rope_write_kv
from edgeflow.kernels import row_operators as row
from edgeflow.kernels import varlen_attention as varlen
from edgeflow.kernels.kv import memory as memories
from edgeflow.kernels.kv import shift_kv
from edgeflow.kernels.kv.int4 import GROUP, Grid, packed, unpacked
from edgeflow.kernels.kv.layout import PackedLayout
from edgeflow.kernels.kv.memory import ACTIVATIONS, MemoryLayer
from edgeflow.kernels.narrow_kv import int4_write, scaled
from edgeflow.kernels.weights import Int8Weight


def shifted(layout: PackedLayout, by: int) -> PackedLayout:
    """A mask that is off: every row but a slot's first sees `by` keys more."""
    place = layout.row_position
    return replace(layout, row_position=torch.where(place > 0, place + by, place))


def other_slot(layout: PackedLayout, kv) -> Callable:
    """The last row reads the slot of the first."""
    slots = layout.row_slot.clone()
    slots[-1] = slots[0]
    return packed_attention.reference(replace(layout, row_slot=slots), kv)


def other_scale(layout: PackedLayout, kv) -> Callable:
    attend = packed_attention.reference(layout, kv)
    return lambda q, layer: attend(q * 1.1, layer)


def without_key(place: int) -> Callable:
    """Attention to which a key of all slots is zero, which is to lose it where others are large."""

    def planned(layout: PackedLayout, kv) -> Callable:
        attend, kept = packed_attention.reference(layout, kv), torch.arange(kv.capacity) != place
        return lambda q, layer: attend(q, replace(layer, keys=layer.keys * kept[:, None, None]))

    return planned


def heads_in_turns(layout: PackedLayout, kv) -> Callable:
    """Query head h reads KV head h mod KH, not h // group."""
    attend = packed_attention.reference(layout, kv)

    def wrong(q, layer):
        kv_heads = layer.keys.shape[2]
        order = torch.arange(q.shape[1]).view(-1, kv_heads).t().flatten()
        return attend(q[:, order], layer)[:, order.argsort()]

    return wrong


def rope(change: Callable) -> Callable:
    """The reference with other places or another input."""
    return lambda qkv, heads, kv_heads, rows, layer: rope_write_kv.reference(*change(qkv, heads, kv_heads, rows), layer)


def latent_rope(change: Callable) -> Callable:
    """As `rope`, over latent slots."""

    def wrong(qk, heads, kv_heads, rows, layer):
        return rope_write_kv.latent_reference(*change(qk, heads, kv_heads, rows), layer)

    return wrong


def other_end(qk, heads, kv_heads, rows, layer):
    """The numbers that are rotated stand in front."""
    width, rotary = layer.keys.shape[-1], rows.cos.shape[-1]
    moved = qk.view(len(qk), -1, width).roll(-rotary, 2)
    q = rope_write_kv.latent_reference(moved.flatten(1), heads, kv_heads, rows, layer)
    written = layer.keys.flatten(0, 1)
    written[rows.flat] = written[rows.flat].roll(rotary, 2)
    return q.roll(rotary, 2)


def backwards(qkv, heads, kv_heads, rows):
    return qkv, heads, kv_heads, replace(rows, sin=-rows.sin)


def next_row(qkv, heads, kv_heads, rows):
    return qkv, heads, kv_heads, replace(rows, cos=rows.cos.roll(1, 0), sin=rows.sin.roll(1, 0))


def one_place_on(qkv, heads, kv_heads, rows):
    return qkv, heads, kv_heads, replace(rows, flat=rows.flat + 1)


def rounded_down(qkv, heads, kv_heads, rows, layer):
    q = scaled.write(qkv, heads, kv_heads, rows, layer)
    layer.keys.flatten(0, 1)[rows.flat] -= (torch.rand(rows.flat.shape[0], *layer.keys.shape[2:]) < 0.5).to(torch.int8)
    return q


def e4m3_rounded_down(qkv, heads, kv_heads, rows, layer):
    q = scaled.write(qkv, heads, kv_heads, rows, layer)
    bits = layer.keys.view(torch.int8).flatten(0, 1)
    own = bits[rows.flat]
    bits[rows.flat] -= ((torch.rand(own.shape) < 0.5) & (own & 127 > 0)).to(torch.int8)
    return q


def int4_rounded_down(qkv, heads, kv_heads, rows, layer):
    q = int4_write.reference(qkv, heads, kv_heads, rows, layer)
    for stored in (layer.keys, layer.values):
        codes = unpacked(stored)
        stored.copy_(packed(codes - ((torch.rand(codes.shape) < 0.5) & (codes > 0)).to(torch.uint8)))
    return q


def group_not_begun(qkv, heads, kv_heads, rows, layer):
    """The keys before a span are not brought."""
    blind = replace(layer, newest=torch.zeros_like(layer.newest))
    q = int4_write.reference(qkv, heads, kv_heads, rows, blind)
    layer.newest.copy_(torch.where(blind.newest == 0, layer.newest, blind.newest))
    return q


def newest_not_kept(qkv, heads, kv_heads, rows, layer):
    """The next pass finds those of the one before."""
    return int4_write.reference(qkv, heads, kv_heads, rows, replace(layer, newest=layer.newest.clone()))


def full_groups_not_exact(qkv, heads, kv_heads, rows, layer):
    """Rows before the last one of a group see others."""
    q = int4_write.reference(qkv, heads, kv_heads, rows, layer)
    for flat in rows.flat.tolist():
        slot, position = divmod(flat, layer.keys.shape[1])
        if position % GROUP == GROUP - 1:
            layer.exact[slot, position + 1 - GROUP : position + 1] = 7.0
    return q


def other_codes(layout, kv):
    attend = packed_attention.reference(layout, kv)
    return lambda q, layer: attend(q, replace(layer, keys=layer.keys.flip(-1)))


def nothing_exact(layout, kv):
    """The newest keys are read in 4 bits too."""
    attend = packed_attention.reference(layout, kv)

    def wrong(q, layer):
        place = torch.arange(kv.capacity)
        grid = Grid(*layer.key_grids[:, :, place // GROUP])
        return attend(q, replace(layer, exact=grid.numbers(unpacked(layer.keys)).to(q.dtype)))

    return wrong


def no_rotation(qkv, heads, kv_heads, rows, layer):
    still = replace(rows, cos=torch.ones_like(rows.cos), sin=torch.zeros_like(rows.sin))
    return scaled.write(qkv, heads, kv_heads, still, layer)


def without_value_scale(layout, kv):
    attend = packed_attention.reference(layout, kv)
    return lambda q, layer: attend(q, replace(layer, value_scales=layer.key_scales))


def off_by_one(layout, kv):
    return packed_attention.reference(shifted(layout, -1), kv)


def one_key_more(layout, kv):
    return packed_attention.reference(shifted(layout, 1), kv)


def first_key_missing(q, k, v, sequences):
    return varlen.reference(q, k, v.masked_fill((torch.arange(len(v)) == 0)[:, None, None], 0), sequences)


def one_sequence(q, k, v, sequences):
    return varlen.reference(q, k, v, varlen.Sequences.of([sum(sequences.lengths)], torch.device("cpu")))


def without_bias(weight, bias):
    return linear.Reference(weight, None)


def in_six_bits(weight, bias):
    scale = weight.values.float().abs().amax(1, keepdim=True) / 31
    return linear.Int8(Int8Weight.of(((weight.values.float() / scale).round() * scale).to(weight.dtype)), bias)


def last_of_equals(logits, first, stop):
    ids, finite = row.greedy_reference(logits.flip(1), logits.shape[1] - stop, logits.shape[1] - first)
    return logits.shape[1] - 1 - ids, finite


def blind_to_nan(logits, first, stop):
    return row.greedy_reference(logits, first, stop)[0], row.greedy_reference(logits.nan_to_num(0.0), first, stop)[1]


def youngest_first(data, moves):
    shift_kv.chain_reference(data, moves.flip(0))


def one_row_short(data, source, target, length):
    shift_kv.reference(data, source, target, max(length - 1, 0))


def memory(change: Callable[[MemoryLayer], MemoryLayer]) -> Callable:
    """The reference reads a memory that is changed."""
    return lambda q, attended, layer, layout: memories.read_reference(q, attended, change(layer), layout)


def memory_of_the_span(q, attended, layer, layout):
    """Span i reads slot i."""
    spans = torch.arange(len(layout.lengths)).repeat_interleave(torch.tensor(layout.lengths))
    return memories.read_reference(q, attended, layer, replace(layout, row_slot=spans))


def share_exchanged(q, attended, layer, layout):
    gate = replace(layer.gate, g=-layer.gate.g)
    return memories.read_reference(q, attended, replace(layer, gate=gate), layout)


def every_span_gated(q, attended, layer, layout):
    return memories.read_reference(q, attended, layer, replace(layout, gated=(True,) * len(layout.gated)))


def one_pair_short(layer, slot, first, stop):
    memories.fold_reference(layer, slot, first, stop - 1)


def another_slot(layer, slot, first, stop):
    memories.fold_reference(layer, 1 - slot, first, stop)


def transposed_fold(layer, slot, first, stop):
    memories.fold_reference(replace(layer, matrices=layer.matrices.mT), slot, first, stop)


def features_in_the_dtype(layer, slot, first, stop):
    """Keys are activated in the dtype of the model."""
    feature = ACTIVATIONS[layer.rules.activation](layer.keys[slot, first:stop]).float().transpose(0, 1)
    value = layer.values[slot, first:stop].float().transpose(0, 1)
    layer.matrices[slot] += feature.mT @ value
    layer.norms[slot] += feature.sum(1)


def sums_in_the_dtype(layer, slot, first, stop):
    """M and z are kept in the dtype of the model."""
    memories.fold_reference(layer, slot, first, stop)
    for sums in (layer.matrices, layer.norms):
        sums.copy_(sums.to(layer.keys.dtype))


def queries_in_the_dtype(q, attended, layer, layout):
    """Queries are activated in the dtype of the model."""
    activate, group = ACTIVATIONS[layer.rules.activation], q.shape[1] // layer.norms.shape[1]
    slots = layout.row_slot
    feature = activate(q).float()
    matrices, norms = (each[slots].repeat_interleave(group, 1) for each in (layer.matrices, layer.norms))
    sums = torch.einsum("lhd,lhde->lhe", feature, matrices)
    read = sums / torch.einsum("lhd,lhd->lh", feature, norms).clamp(min=layer.rules.eps)[..., None]
    return mixed(read, attended, layer, layout)


def products_in_the_dtype(q, attended, layer, layout):
    """A memory is read by a product in the dtype of the model."""
    return memories.read_reference(q, attended, replace(layer, matrices=layer.matrices.to(q.dtype).float()), layout)


def mixed(read, attended, layer, layout):
    """What a gate that all heads share makes of what rows read."""
    gate = layer.gate
    inner = torch.relu(read.to(attended.dtype) @ gate.w1[0].T + gate.b1[0])
    told, share = inner @ gate.w2[0].T + gate.b2[0], torch.sigmoid(gate.g)
    gated = torch.tensor(layout.gated).repeat_interleave(torch.tensor(layout.lengths))[:, None, None]
    return torch.where(gated, share * told + (1 - share) * attended, attended)


WRONG = {
    "memory: transposed": ("read_memory", memory(lambda layer: replace(layer, matrices=layer.matrices.mT))),
    "memory: of the next head": (
        "read_memory",
        memory(lambda layer: replace(layer, matrices=layer.matrices.roll(1, 1), norms=layer.norms.roll(1, 1))),
    ),
    "memory: no least denominator": (
        "read_memory",
        memory(lambda layer: replace(layer, rules=replace(layer.rules, eps=0.0))),
    ),
    "memory: one more in the denominator": (
        "read_memory",
        memory(lambda layer: replace(layer, norms=layer.norms * 1.05)),
    ),
    "memory: the slot of the span's number": ("read_memory", memory_of_the_span),
    "memory: shares exchanged": ("read_memory", share_exchanged),
    "memory: all spans gated": ("read_memory", every_span_gated),
    "fold: one pair short": ("fold_memory", one_pair_short),
    "fold: another slot": ("fold_memory", another_slot),
    "fold: transposed": ("fold_memory", transposed_fold),
    "rms_norm: eps": ("rms_norm", lambda x, w, eps: row.rms_norm_reference(x, w, eps * 1.5)),
    "rms_norm: mean over one more": (
        "rms_norm",
        lambda x, w, eps: row.rms_norm_reference(x, w, eps) * ((x.shape[-1] + 1) / x.shape[-1]) ** 0.5,
    ),
    "add_rms_norm: no residual": ("add_rms_norm", lambda x, r, w, eps: row.add_rms_norm_reference(x, 0 * r, w, eps)),
    "add_rms_norm: sum not kept": (
        "add_rms_norm",
        lambda x, r, w, eps: (row.add_rms_norm_reference(x, r, w, eps)[0], x),
    ),
    "adaptive: eps": (
        "add_adaptive_norm",
        lambda x, r, n, at, eps: row.add_adaptive_norm_reference(x, r, n, at, eps * 1.5),
    ),
    "adaptive: another row's condition": (
        "add_adaptive_norm",
        lambda x, r, n, at, eps: row.add_adaptive_norm_reference(x, r, n, at.roll(1), eps),
    ),
    "adaptive: gate and factor exchanged": (
        "add_adaptive_norm",
        lambda x, r, n, at, eps: row.add_adaptive_norm_reference(x, r, n[:, [1, 0, 2]], at, eps),
    ),
    "adaptive: sum not kept": (
        "add_adaptive_norm",
        lambda x, r, n, at, eps: (row.add_adaptive_norm_reference(x, r, n, at, eps)[0], r),
    ),
    "geglu: SiLU": ("geglu", row.swiglu_reference),
    "geglu: a block's last column": ("geglu", lambda x: row.geglu_reference(x).roll(1, 1)),
    "add_layer_norm: eps": (
        "add_layer_norm",
        lambda x, r, w, b, eps: row.add_layer_norm_reference(x, r, w, b, eps * 1.5),
    ),
    "add_layer_norm: mean left in": (
        "add_layer_norm",
        lambda x, r, w, b, eps: (row.rms_norm_reference(x + r, w, eps) + b, x + r),
    ),
    "add_layer_norm: sum not returned": (
        "add_layer_norm",
        lambda x, r, w, b, eps: (row.add_layer_norm_reference(x, r, w, b, eps)[0], r),
    ),
    "swiglu: halves exchanged": ("swiglu", lambda x: row.swiglu_reference(x.roll(x.shape[1] // 2, 1))),
    "swiglu: a block's last column": ("swiglu", lambda x: row.swiglu_reference(x).roll(1, 1)),
    "greedy: last of equals": ("greedy", last_of_equals),
    "greedy: NaN": ("greedy", blind_to_nan),
    "greedy: a column short": ("greedy", lambda x, a, b: row.greedy_reference(x, a, max(b - 1, a + 1))),
    "shift_kv: a row short": ("shift_kv", one_row_short),
    "shift_kv_chain: order": ("shift_kv_chain", youngest_first),
    "rope: backwards": ("rope_write_kv dense", rope(backwards)),
    "rope: another row's angle": ("rope_write_kv dense", rope(next_row)),
    "rope: the next place": ("rope_write_kv dense", rope(one_place_on)),
    "latent: backwards": ("rope_write_kv latent", latent_rope(backwards)),
    "latent: the next place": ("rope_write_kv latent", latent_rope(one_place_on)),
    "latent: the first numbers rotated": ("rope_write_kv latent", other_end),
    "int8: rounded down": ("rope_write_kv int8", rounded_down),
    "fp8: rounded down": ("rope_write_kv fp8", e4m3_rounded_down),
    "int4: rounded down": ("rope_write_kv int4", int4_rounded_down),
    "int4: a group that is not brought": ("rope_write_kv int4", group_not_begun),
    "int4: nothing kept as the newest": ("rope_write_kv int4", newest_not_kept),
    "int4: full groups no longer exact": ("rope_write_kv int4", full_groups_not_exact),
    "int8: no rotation": ("rope_write_kv int8", no_rotation),
    "attention: one key fewer": ("packed_attention dense", off_by_one),
    "latent attention: one key fewer": ("packed_attention latent", off_by_one),
    "latent attention: scale": ("packed_attention latent", other_scale),
    "attention: one key more": (
        "packed_attention dense",
        one_key_more,
    ),
    "attention: another slot": ("packed_attention dense", other_slot),
    "attention: scale": ("packed_attention dense", other_scale),
    "attention: heads in turns": ("packed_attention dense", heads_in_turns),
    "int8 attention: value scales": ("packed_attention int8", without_value_scale),
    "int8 attention: one key fewer": ("packed_attention int8", off_by_one),
    "fp8 attention: value scales": ("packed_attention fp8", without_value_scale),
    "int4 attention: one key fewer": ("packed_attention int4", off_by_one),
    "int4 attention: other codes": ("packed_attention int4", other_codes),
    "int4 attention: nothing exact": ("packed_attention int4", nothing_exact),
    "linear: no bias": ("linear", without_bias),
    "varlen: a key missing": ("varlen_attention", first_key_missing),
    "varlen: one sequence": ("varlen_attention", one_sequence),
}
