"""The problems that prove an operator: small ones around every edge of a block. Models' own shapes are in
model_cases.py.

Blocks are 64 queries by 64 keys (attention), 1024 or 4096 columns (rows), 2048 numbers (shift).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from edgeflow.kernels.kv.formats import FP8, INT8, ScaledKV
from edgeflow.kernels.kv.layout import Span
from edgeflow.kernels.kv.visibility import Visibility, before, bidirectional_prefix, causal
from edgeflow.kernels.weights import FLOAT
from edgeflow.lab.trials import cases, kv_cases, memory_cases
from edgeflow.lab.trials.cases import Heads, TrialCase
from edgeflow.lab.trials.visibility import bidirectional_suffix, tree_of_drafts, window

_HEADS = (Heads(4, 4, 64), Heads(7, 1, 80), Heads(14, 2, 128))
_LOGITS = ((1, 1, 0, 1), (7, 4095), (7, 4096), (7, 9000), (6, 9000, 31, 4127), (6, 300, 256, 300), (0, 64))
"""Rows, vocabulary, and a slice of it."""
LONG = 1 << 15
"""Positions of a long context, whose keys are so many that the loss of one is seen only where it counts."""


def small_cases(op_name: str, kv: str = "", weight: str = FLOAT) -> list[TrialCase]:
    """The problems of an operator, only those over one KV format if `kv` names it; KeyError if it has none.

    weight: the format of weights, for operators that have them.
    """
    found = [case for case in _PROOFS[op_name]() if kv in ("", case.kv)]
    return [case for case in found if weight == (case.weight or FLOAT)]


def _rms_norm() -> list[TrialCase]:
    widths = [1, 8, 63, 64, 65, 896, 4096]
    plain = [cases.rms_norm(rows, width) for rows, width in zip([1, 2, 5, 3, 1, 7, 3], widths, strict=True)]
    others = [cases.rms_norm(2, 16, eps=0.5), cases.rms_norm(3, 896, wide=True), cases.head_norm(5, Heads(4, 2, 80))]
    return [*plain, cases.rms_norm(0, 16), *others]


def _add_rms_norm() -> list[TrialCase]:
    plain = [cases.add_rms_norm(*size) for size in ((1, 1), (3, 64), (5, 65), (2, 896), (0, 8))]
    return [*plain, cases.add_rms_norm(3, 896, wide=True)]


def _add_adaptive_norm() -> list[TrialCase]:
    plain = [cases.add_adaptive_norm(*size) for size in ((1, 1), (3, 64), (5, 65), (4, 1024), (0, 8))]
    return [*plain, cases.add_adaptive_norm(2, 16, eps=0.5), cases.add_adaptive_norm(4, 896, first=True)]


def _gated(op_name: str) -> list[TrialCase]:
    sizes = ((1, 1), (2, 1023), (1, 1024), (3, 1025), (0, 8), (2, 2816))
    return [cases.swiglu(*size, op_name) for size in sizes]


def _add_layer_norm() -> list[TrialCase]:
    towers = [cases.add_layer_norm(3, 1024), cases.add_layer_norm(2, 1152)]
    small = [cases.add_layer_norm(rows, width) for rows, width in ((1, 1), (3, 64), (5, 65), (0, 8))]
    return [*towers, *small, cases.add_layer_norm(2, 16, eps=0.5)]


def _rope_spans() -> list[list[Span]]:
    return [
        [Span(0, 0, 1)],
        [Span(3, 0, 7), Span(0, 11, 1), Span(2, 5, 1)],
        [Span(1, 9, 3), Span(0, 2, 2), Span(1, 4, 5)],
    ]


def _rope() -> list[TrialCase]:
    heads = [Heads(4, 4, 64), Heads(7, 1, 72), Heads(6, 2, 80), Heads(3, 1, 96), Heads(14, 2, 128), Heads(1, 1, 256)]
    found = [
        cases.rope_write_kv(_rope_spans()[index % 3], each, sections=sections)
        for index, each in enumerate(heads)
        for sections in (False, True)
    ]
    return [*found, cases.rope_write_kv(_rope_spans()[1], Heads(2, 2, 8))]


def _linear() -> list[TrialCase]:
    """One row to more than a block of them, widths that no block divides."""
    shapes = [(1, 64, 64), (1, 130, 96), (1, 33, 257), (2, 64, 31), (3, 9, 8), (63, 65, 17), (65, 128, 896)]
    plain = [cases.linear(*shape, bias=index % 2 == 0) for index, shape in enumerate(shapes)]
    return [*plain, *_linear_awq(), *_linear_int8()]


def _linear_awq() -> list[TrialCase]:
    """Weights of 4 bits in groups of each size: one row to more than a block, one group and several."""
    shapes = [(1, 64, 64, 64), (1, 136, 96, 32), (2, 8, 256, 128), (3, 40, 192, 64), (5, 8, 32, 32), (16, 72, 128, 64)]
    more = [(17, 64, 128, 128), (63, 72, 64, 32), (65, 128, 448, 64)]
    return [cases.linear(*sizes, group=group, bias=not sizes[0] % 2) for *sizes, group in (*shapes, *more)]


def _linear_int8() -> list[TrialCase]:
    """Weights that are held in 8 bits: one row to more than a block, a last tile of one output."""
    shapes = [(1, 64, 64), (1, 129, 96), (2, 40, 32), (3, 17, 896), (5, 8, 160), (17, 72, 128), (65, 128, 448)]
    return [cases.linear(*shape, format="int8", bias=not shape[0] % 2) for shape in shapes]


def _rope_scaled(kv_format: ScaledKV) -> list[TrialCase]:
    return [
        cases.rope_write_kv_scaled(spans, each, kv_format) for spans, each in zip(_rope_spans(), _HEADS, strict=True)
    ]


def _edges() -> list[list[Span]]:
    """Prefills, decode rows, chunks and verifications at the edges of blocks and of parts, slots in any order."""
    return [
        [Span(0, 0, 1)],
        [Span(2, 62, 1), Span(0, 63, 1), Span(3, 64, 1), Span(1, 0, 1)],
        [Span(1, 0, 63), Span(0, 70, 1), Span(2, 71, 1)],
        [Span(0, 0, 64), Span(2, 65, 1)],
        [Span(3, 0, 65), Span(1, 1, 1), Span(0, 66, 1)],
        [Span(1, 60, 9), Span(0, 3, 2)],
        [Span(1, 254, 1), Span(2, 255, 1), Span(0, 256, 1), Span(3, 600, 1)],
        [Span(0, 510, 2), Span(2, 0, 20), Span(1, 300, 2)],
        [Span(1, 10, 1), Span(1, 11, 1), Span(0, 4, 3)],
    ]


def _sights() -> list[tuple[list[Span], list[Visibility]]]:
    """Rows that are not causal, among causal ones: at the edges of blocks, with gaps, and with few and many rows."""
    binary = [(row - 1) // 2 for row in range(63)]
    spans = [
        [Span(0, 0, 70), Span(2, 600, 1)],
        [Span(1, 300, 9), Span(0, 66, 1), Span(2, 5, 1)],
        [Span(0, 0, 70), Span(1, 9, 1)],
        [Span(0, 0, 5), Span(2, 0, 66)],
        [Span(1, 130, 20), Span(0, 63, 3)],
        [Span(0, 100, 17), Span(1, 5, 1)],
        [Span(2, 90, 7), Span(1, 65, 1)],
        [Span(1, 254, 63), Span(0, 0, 3)],
    ]
    visibility = [
        [window(spans[0][0], 20, 4), window(spans[0][1], 64, 4)],
        [window(spans[1][0], 130), causal(spans[1][1]), causal(spans[1][2])],
        [bidirectional_prefix(spans[2][0], 65), causal(spans[2][1])],
        [bidirectional_prefix(spans[3][0], 5), causal(spans[3][1])],
        [bidirectional_suffix(spans[4][0], 65), before(spans[4][1], 2)],
        [before(spans[5][0], 64), before(spans[5][1], 3)],
        [tree_of_drafts(spans[6][0], (-1, 0, 0, 1, -1, 4, 2)), causal(spans[6][1])],
        [tree_of_drafts(spans[7][0], binary), causal(spans[7][1])],
    ]
    return list(zip(spans, visibility, strict=True))


def _attention_heads() -> list[Heads]:
    """Groups 1 to 8 over widths 64 to 256."""
    widths = [64, 72, 80, 96, 128, 256, 128, 64]
    return [Heads(group * (1 + group % 2), 1 + group % 2, width) for group, width in enumerate(widths, start=1)]


def _packed_attention() -> list[TrialCase]:
    edges, heads = _edges(), _attention_heads()
    named = [cases.packed_attention(spans, heads[index % 8]) for index, spans in enumerate(edges)]
    small = [cases.packed_attention(_edges()[4], each) for each in heads]
    drawn = [cases.packed_attention(_drawn(seed), heads[seed % 8], layers=2) for seed in range(6)]
    seen = [
        cases.packed_attention(spans, heads[index], 1, visibility)
        for index, (spans, visibility) in enumerate(_sights())
    ]
    spiked = [
        kv_cases.spiked_attention(Span(0, start, LONG - start), Heads(7, 1, 64)) for start in (LONG - 1, LONG - 5)
    ]
    return [*named, *small, *drawn, *seen, *spiked]


def _packed_attention_scaled(kv_format: ScaledKV) -> list[TrialCase]:
    plain = [cases.packed_attention_scaled(spans, _HEADS[i % 3], kv_format) for i, spans in enumerate(_edges())]
    seen = [
        cases.packed_attention_scaled(spans, _HEADS[index % 3], kv_format, visibility)
        for index, (spans, visibility) in enumerate(_sights())
    ]
    return [*plain, *seen]


def _read_memory() -> list[TrialCase]:
    """One row to more than a block, groups of one head and of several, an MLP per layer and per head."""
    heads = [Heads(4, 4, 16), Heads(6, 2, 64), Heads(14, 2, 64), Heads(3, 1, 128)]
    lengths: Sequence[list[int]] = ([1], [5, 3, 65], [1, 1, 1], [64, 2])
    plain = [memory_cases.read_memory(each, head, hidden=24) for each, head in zip(lengths, heads, strict=True)]
    return [
        *plain,
        memory_cases.read_memory([7, 2], heads[1], hidden=40, by_head=True),
        memory_cases.read_in_float32([3, 1, 9], heads[1]),
        memory_cases.read_empty([2, 4, 1], heads[2]),
    ]


def _fold_memory() -> list[TrialCase]:
    heads = [Heads(4, 4, 16), Heads(6, 2, 64), Heads(3, 1, 128)]
    plain = [memory_cases.fold_memory(places, head) for places, head in zip((1, 65, 300), heads, strict=True)]
    return [*plain, memory_cases.fold_memory(9, heads[1], "relu")]


def _rope_latent() -> list[TrialCase]:
    sizes = [(Heads(4, 1, 24), 8), (Heads(7, 1, 81), 16), (Heads(16, 1, 576), 64)]
    return [kv_cases.rope_write_latent(spans, *each) for spans, each in zip(_rope_spans(), sizes, strict=True)]


def _packed_attention_latent() -> list[TrialCase]:
    heads = [Heads(4, 1, 24), Heads(7, 1, 81), Heads(16, 1, 576)]
    plain = [kv_cases.attention_latent(spans, heads[index % 3]) for index, spans in enumerate(_edges())]
    seen = [
        kv_cases.attention_latent(spans, heads[i % 2], visibility) for i, (spans, visibility) in enumerate(_sights())
    ]
    return [*plain, *seen]


def _rope_int4() -> list[TrialCase]:
    """Groups that begin before a pass, that end in it, and both; longer than what stays exact."""
    spans = [
        [Span(0, 0, 1)],
        [Span(1, 31, 1), Span(0, 40, 1), Span(2, 63, 1)],
        [Span(0, 0, 70), Span(1, 31, 2)],
        [Span(2, 20, 90), Span(0, 5, 7), Span(1, 64, 32)],
    ]
    heads = [Heads(4, 4, 64), Heads(7, 1, 80), Heads(14, 2, 128), Heads(2, 2, 96)]
    return [kv_cases.rope_write_int4(*each) for each in zip(spans, heads, strict=True)]


def _packed_attention_int4() -> list[TrialCase]:
    spans = [*_edges(), [Span(0, 30, 4), Span(2, 31, 1), Span(1, 32, 1), Span(3, 0, 33)], [Span(0, 10, 100)]]
    plain = [kv_cases.attention_int4(each, _HEADS[index % 3]) for index, each in enumerate(spans)]
    return [kv_cases.attention_int4([Span(1, 330, 4)], Heads(40, 1, 16)), *plain]


def _drawn(seed: int) -> list[Span]:
    """A few random spans of distinct slots in any order, most of them decode rows."""
    draw = random.Random(seed)
    slots = draw.sample(range(6), draw.randint(1, 5))
    return [Span(slot, draw.randint(0, 90), draw.choice([1, 1, 1, 2, 17, 40])) for slot in slots]


def _varlen_attention() -> list[TrialCase]:
    lengths: Sequence[list[int]] = ([1], [0, 5], [63, 64, 65], [16, 16, 16], [40, 1, 0, 130])
    heads = [Heads(2, 2, 64), Heads(1, 1, 72), Heads(2, 2, 80), Heads(1, 1, 96), Heads(1, 1, 256)]
    plain = [cases.varlen_attention(each, head) for each, head in zip(lengths, heads, strict=True)]
    return [*plain, cases.varlen_attention([5, 9], heads[0], turned=True)]


_PROOFS: dict[str, Callable[[], list[TrialCase]]] = {
    "rms_norm": _rms_norm,
    "add_rms_norm": _add_rms_norm,
    "add_adaptive_norm": _add_adaptive_norm,
    "add_layer_norm": _add_layer_norm,
    "swiglu": lambda: _gated("swiglu"),
    "geglu": lambda: _gated("geglu"),
    "greedy": lambda: [cases.greedy(*shape) for shape in _LOGITS],
    "linear": _linear,
    "shift_kv": lambda: [cases.shift_kv(65, length, Heads(2, 2, 16)) for length in (0, 1, 63, 64, 65)],
    "shift_kv_chain": lambda: [
        cases.shift_kv_chain(70, lengths, Heads(2, 2, 16)) for lengths in ([], [5], [64, 65, 66], [70, 1, 0, 63])
    ],
    "rope_write_kv": lambda: [*_rope(), *_rope_scaled(INT8), *_rope_scaled(FP8), *_rope_int4(), *_rope_latent()],
    "packed_attention": lambda: [
        *_packed_attention(),
        *_packed_attention_scaled(INT8),
        *_packed_attention_scaled(FP8),
        *_packed_attention_int4(),
        *_packed_attention_latent(),
    ],
    "varlen_attention": _varlen_attention,
    "read_memory": _read_memory,
    "fold_memory": _fold_memory,
}
