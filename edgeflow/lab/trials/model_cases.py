"""The problems that a served model poses to its operators: the tuner times them, the GPU suite checks them beside small
ones.

Their order is the priority of EdgeFM section 3.4: attention, KV writes and RoPE of prefills, then projections, then
what decodes, then norms, activations and the choice of tokens. What only other KV formats than dense need comes last.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from edgeflow.kernels.kv.formats import FP8, INT8
from edgeflow.kernels.kv.layout import Span
from edgeflow.kernels.table.dimensions import KINDS, stage_of
from edgeflow.kernels.table.model_shape import ModelShape, Product
from edgeflow.lab.trials import cases, kv_cases
from edgeflow.lab.trials.cases import Heads, TrialCase
from edgeflow_client.errors import ConfigError

COPIED_LAYERS = 2  # slots of a cache that is shifted; the time of every candidate is proportional to them
HEAD_NORMS = ("qwen3",)
"""Families that normalise each head's query and key."""

ATTENTION = ("attention", "rope", "kv_cache")
Staged = tuple[str, TrialCase]
"""(stage of the pass, case)"""


def _qwen(hidden: int, inner: int, heads: int, kv_heads: int, vocabulary: int = 151936) -> ModelShape:
    """A Qwen2.5 after a prompt of 1,024 rows."""
    return ModelShape(
        family="qwen2",
        hidden=hidden,
        inner=inner,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=hidden // heads,
        vocabulary=vocabulary,
        rows=1024,
        stages=1,
    )


PRESETS = {
    "openvla-7b": ModelShape(),
    "qwen2.5-0.5b": _qwen(896, 4864, 14, 2),
    "qwen2.5-1.5b": _qwen(1536, 8960, 12, 2),
    "qwen2.5-3b": _qwen(2048, 11008, 16, 2),
    "qwen2.5-7b": _qwen(3584, 18944, 28, 4, 152064),
}


def preset(name: str) -> ModelShape:
    """The shape of that name; ConfigError lists the known ones."""
    if name not in PRESETS:
        raise ConfigError(f"model {name!r} is not a directory or one of {', '.join(PRESETS)}")
    return PRESETS[name]


def passes(shape: ModelShape) -> list[list[Span]]:
    """A decode row, a prefill, and, if frames are pipelined, the steady pass and the drain."""
    rows, stages = shape.rows, shape.stages
    decodes = [Span(stage, rows + stage - 1, 1) for stage in range(1, stages)]
    plain = [[Span(0, rows, 1)], [Span(0, 0, rows)]]
    return [*plain, [Span(0, 0, rows), *decodes], decodes] if stages > 1 else plain


def model_cases(shape: ModelShape) -> list[TrialCase]:
    """One case per operator, role and shape signature, by priority; a norm's role does not make it another problem."""
    by_signature: dict[tuple[Any, ...], TrialCase] = {}
    for _, case in staged_cases(shape):
        each = replace(case, layer_role="") if KINDS[case.op_name] == "norm" else case
        by_signature.setdefault((each.op_name, each.kv, each.layer_role, each.weight, each.signed()), each)
    return list(by_signature.values())


def staged_cases(shape: ModelShape) -> list[Staged]:
    """Every call of every pass with the pass's stage, each shape of a stage once, by priority. For a policy that
    denoises chunks, only the products.
    """
    found: dict[tuple[Any, ...], Staged] = {}
    for stage, case in _denoising_cases(shape) if shape.step_rows else _token_cases(shape):
        found.setdefault((stage, case.op_name, case.kv, case.layer_role, case.weight, case.signed()), (stage, case))
    return sorted(found.values(), key=_priority)


def _token_cases(shape: ModelShape) -> list[Staged]:
    calls: list[Staged] = []
    for spans in passes(shape):
        stage = stage_of([span.length for span in spans])
        calls += [(stage, case) for case in _pass_cases(shape, spans)]
        calls += _last_layer_cases(shape, spans, stage)
    return calls


def _priority(staged: Staged) -> int:
    stage, case = staged
    kind = KINDS[case.op_name]
    if case.kv not in ("", "dense", "latent"):
        return 4
    if kind in ATTENTION:
        return 2 if stage == "decode" else 0
    if kind == "linear":
        return 2 if stage == "decode" or case.layer_role == "head" else 1
    return 3


def _pass_cases(shape: ModelShape, spans: list[Span]) -> list[TrialCase]:
    """The calls of one pass; the calls of a layer are listed once."""
    rows = sum(span.length for span in spans)
    (attention, *narrow_attention), (write, *narrow_writes) = _attention(shape, spans), _writes(shape, spans)
    return [
        attention,
        write,
        *linear_cases(shape, rows),
        *(_case(each, len(spans)) for each in shape.every_product if each.role == "head"),
        cases.rms_norm(rows, shape.hidden, role="input"),
        cases.add_rms_norm(rows, shape.hidden, role="post_attention"),
        cases.add_rms_norm(rows, shape.hidden, role="input"),
        *_norm_cases(shape, rows),
        cases.rms_norm(len(spans), shape.hidden, role="final"),
        cases.swiglu(rows, shape.inner),
        cases.greedy(len(spans), shape.vocabulary),
        *_shift_cases(shape, spans),
        *narrow_writes,
        *narrow_attention,
    ]


def _writes(shape: ModelShape, spans: list[Span]) -> list[TrialCase]:
    """Writes into slots in the model's own format, then into those of fewer bits."""
    heads = _heads(shape)
    if shape.latent is not None:
        return [kv_cases.rope_write_latent(spans, heads, shape.latent.rotary)]
    scaled = [cases.rope_write_kv_scaled(spans, heads, each) for each in (INT8, FP8)]
    return [cases.rope_write_kv(spans, heads), *scaled, kv_cases.rope_write_int4(spans, heads)]


def _attention(shape: ModelShape, spans: list[Span]) -> list[TrialCase]:
    """Attention over slots in the model's own format, then over those of fewer bits."""
    heads = _heads(shape)
    if shape.latent is not None:
        return [kv_cases.attention_latent(spans, heads)]
    scaled = [cases.packed_attention_scaled(spans, heads, each) for each in (INT8, FP8)]
    return [cases.packed_attention(spans, heads), *scaled, kv_cases.attention_int4(spans, heads)]


def _heads(shape: ModelShape) -> Heads:
    return Heads(shape.heads, shape.kv_heads, shape.head_dim)


def _norm_cases(shape: ModelShape, rows: int) -> list[TrialCase]:
    """The norms of queries and keys, or of the rows that they are projected from."""
    if shape.latent is not None:
        widths = {"key": shape.latent.rank, "query": shape.latent.query_rank}
        return [cases.rms_norm(rows, width, role=role) for role, width in widths.items() if width]
    roles = ("query", "key") if shape.family in HEAD_NORMS else ()
    return [cases.head_norm(rows, _heads(shape), role=role) for role in roles]


def _last_layer_cases(shape: ModelShape, spans: list[Span], stage: str) -> list[Staged]:
    """The calls of the last layer over the last row of each span, which attends as a decode row does; stage: of the
    pass. Where every span is one row, the last layer makes the calls of the others."""
    if all(span.length == 1 for span in spans):
        return []
    rows = len(spans)
    last = [Span(span.slot, span.start + span.length - 1, 1) for span in spans]
    others = [
        *(case for case in linear_cases(shape, rows) if case.layer_role not in ("qkv", "query")),
        cases.add_rms_norm(rows, shape.hidden, role="post_attention"),
        cases.swiglu(rows, shape.inner),
    ]
    return [*(("decode", case) for case in _attention(shape, last)), *((stage, case) for case in others)]


def _shift_cases(shape: ModelShape, spans: list[Span]) -> list[TrialCase]:
    """A fixed prefix brought before a prefill; the copies after a packed pass that moves every frame on."""
    heads, capacity = Heads(1, shape.kv_heads, shape.head_dim), shape.rows + shape.stages
    stage = stage_of([span.length for span in spans])
    if stage == "prefill":
        return [cases.shift_kv(capacity, shape.rows, heads, COPIED_LAYERS)]
    if stage == "packed":
        lengths = [shape.rows + stage for stage in range(shape.stages - 1)]
        return [cases.shift_kv_chain(capacity, lengths, heads, COPIED_LAYERS)]
    return []


def linear_cases(shape: ModelShape, rows: int) -> list[TrialCase]:
    """The projections of a layer, for `rows` rows."""
    return [_case(each, rows) for each in shape.every_product if each.role != "head"]


def _case(product: Product, rows: int) -> TrialCase:
    sizes = rows, product.outputs, product.inputs
    return cases.linear(*sizes, role=product.role, group=product.group, format=product.format)


def _denoising_cases(shape: ModelShape) -> list[Staged]:
    """The products of a prompt, of one step, and of the steps beside a prompt if frames are pipelined."""
    found = []
    for product in shape.every_product:
        counts = (shape.step_rows, shape.step_rows * (shape.stages - 1)) if product.of_steps else (shape.rows,)
        found += [("prefill", _case(product, rows)) for rows in counts]
    return found
