"""The problems a served model poses its operators: what the tuner times and the GPU suite checks beside small ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from edgeflow.errors import ConfigError
from edgeflow.kernels import cases
from edgeflow.kernels.cases import Case, Heads
from edgeflow.kernels.layout import Span

MAX_SIZE = 1 << 20
COPIED_LAYERS = 2  # of a cache that is shifted; time grows with them alike for every candidate
NAMES = {
    "hidden": "hidden_size",
    "inner": "intermediate_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "vocabulary": "vocab_size",
}
"""Fields as a checkpoint's config.json names them."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of a model and of its passes. family: the model_name its operators are looked up by.

    rows: of a prefill; stages: action tokens, K.
    """

    family: str = "llama"
    hidden: int = 4096
    inner: int = 11008
    heads: int = 32
    kv_heads: int = 32
    head_dim: int = 128
    vocabulary: int = 32064
    rows: int = 280
    stages: int = 7

    def __post_init__(self) -> None:
        for name in (each.name for each in fields(self) if each.name != "family"):
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= MAX_SIZE:
                raise ConfigError(f"model shape: {name} must be a whole number from 1 to {MAX_SIZE}, got {value!r}")
        if self.heads % self.kv_heads or self.head_dim % 2:
            raise ConfigError("model shape: kv_heads must divide heads, and head_dim must be even")

    @classmethod
    def of_config(cls, config: Mapping[str, Any], rows: int, stages: int = 7) -> ModelShape:
        """From the decoder's part of a config.json; what it leaves out is as in Llama 7B."""
        given = {mine: config[theirs] for mine, theirs in NAMES.items() if config.get(theirs) is not None}
        plain = {"kv_heads": given.get("heads", 32), **given}
        if "head_dim" not in plain and isinstance(plain.get("heads"), int) and plain["heads"] > 0:
            plain["head_dim"] = plain.get("hidden", 4096) // plain["heads"]
        return cls(**plain, rows=rows, stages=stages)


PRESETS = {
    "openvla-7b": ModelShape(),
    "qwen2.5-0.5b": ModelShape("llama", 896, 4864, 14, 2, 64, 151936, 1024, 1),
    "qwen2.5-1.5b": ModelShape("llama", 1536, 8960, 12, 2, 128, 151936, 1024, 1),
    "qwen2.5-3b": ModelShape("llama", 2048, 11008, 16, 2, 128, 151936, 1024, 1),
    "qwen2.5-7b": ModelShape("llama", 3584, 18944, 28, 4, 128, 152064, 1024, 1),
}


def preset(name: str) -> ModelShape:
    """ConfigError lists what there is."""
    if name not in PRESETS:
        raise ConfigError(f"model {name!r} is no directory and none of {', '.join(PRESETS)}")
    return PRESETS[name]


def passes(shape: ModelShape) -> list[list[Span]]:
    """A decode row, a prefill, and where frames are pipelined the steady pass and the drain."""
    rows, stages = shape.rows, shape.stages
    decodes = [Span(stage, rows + stage - 1, 1) for stage in range(1, stages)]
    plain = [[Span(0, rows, 1)], [Span(0, 0, rows)]]
    return [*plain, [Span(0, 0, rows), *decodes], decodes] if stages > 1 else plain


def model_cases(shape: ModelShape) -> list[Case]:
    """One case of each operator, role and shape signature."""
    heads = Heads(shape.heads, shape.kv_heads, shape.head_dim)
    found: list[Case] = []
    for spans in passes(shape):
        rows = sum(span.length for span in spans)
        found += [
            cases.rms_norm(rows, shape.hidden),
            cases.swiglu(rows, shape.inner),
            cases.rope_write_kv(spans, heads),
            cases.rope_write_kv_int8(spans, heads),
            cases.packed_attention(spans, heads),
            cases.packed_attention_int8(spans, heads),
            cases.greedy(len(spans), shape.vocabulary),
            *linear_cases(shape, rows),
            cases.linear(len(spans), shape.vocabulary, shape.hidden, role="head"),
        ]
    if shape.stages > 1:
        lengths = [shape.rows + stage for stage in range(shape.stages - 1)]
        capacity = shape.rows + shape.stages
        found.append(cases.shift_kv(capacity, shape.rows, replace(heads, query=1), COPIED_LAYERS))
        found.append(cases.shift_kv_chain(capacity, lengths, replace(heads, query=1), COPIED_LAYERS))
    return list({(case.op_name, case.layer_role, case.signed()): case for case in found}.values())


def linear_cases(shape: ModelShape, rows: int) -> list[Case]:
    """The projections of a layer."""
    width, heads = shape.hidden, shape.heads * shape.head_dim
    return [
        cases.linear(rows, heads + 2 * shape.kv_heads * shape.head_dim, width, role="qkv"),
        cases.linear(rows, width, heads, residual=True, role="output"),
        cases.linear(rows, 2 * shape.inner, width, role="gate_up"),
        cases.linear(rows, width, shape.inner, residual=True, role="down"),
    ]
