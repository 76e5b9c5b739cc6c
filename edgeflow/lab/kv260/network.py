"""A decoder's linears and tensors, computed only from its configuration."""

from __future__ import annotations

from collections.abc import Iterator

from edgeflow.lab.kv260.macro import OUTPUTS, MacroShape
from edgeflow.models.llama import LlamaConfig

PAPER_MODEL = "qwen2.5-0.5b"
PUBLISHED = {
    PAPER_MODEL: LlamaConfig(
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
        vocab_size=151936,
        rope_theta=1e6,
        max_position_embeddings=32768,
        tie_word_embeddings=True,
        attention_bias=True,
    )
}
"""Configurations that need no checkpoint, by name."""

LINEARS = ("qkv", "output", "gate_up", "down")
"""Linears of a layer as the decoder computes them: those that read the same rows are joined."""


def layer_linears(config: LlamaConfig) -> dict[str, tuple[int, int]]:
    """N, E of the seven linears of a layer, by published name."""
    width, inner = config.hidden_size, config.intermediate_size
    return {
        "self_attn.q_proj": (config.q_width, width),
        "self_attn.k_proj": (config.kv_width, width),
        "self_attn.v_proj": (config.kv_width, width),
        "self_attn.o_proj": (width, config.q_width),
        "mlp.gate_proj": (inner, width),
        "mlp.up_proj": (inner, width),
        "mlp.down_proj": (width, inner),
    }


def fused_linears(config: LlamaConfig) -> dict[str, tuple[int, int]]:
    """N, E of LINEARS."""
    width, inner = config.hidden_size, config.intermediate_size
    return {
        "qkv": (config.q_width + 2 * config.kv_width, width),
        "output": (width, config.q_width),
        "gate_up": (2 * inner, width),
        "down": (width, inner),
    }


def head_in_macros(config: LlamaConfig, group: int) -> MacroShape:
    """The head as macros; the last block is padded with zeros."""
    outputs = -(-config.vocab_size // OUTPUTS) * OUTPUTS
    return MacroShape(outputs, config.hidden_size, group, "lm_head")


def tensor_shapes_of(config: LlamaConfig, stem: str = "model.") -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of every tensor of a float checkpoint.

    stem: beginning of all names except the head's.
    """
    width = config.hidden_size
    yield f"{stem}embed_tokens.weight", (config.vocab_size, width)
    for index in range(config.num_hidden_layers):
        for name, shape in _layer_tensors(config):
            yield f"{stem}layers.{index}.{name}", shape
    yield f"{stem}norm.weight", (width,)
    if not config.tie_word_embeddings:
        yield "lm_head.weight", (config.vocab_size, width)


def gemm_shapes_of(config: LlamaConfig, group: int) -> dict[str, tuple[int, ...]]:
    """Shapes of an AutoAWQ checkpoint with all linears of the layers in 4 bits, by name."""
    linears = set(layer_linears(config))
    shapes: dict[str, tuple[int, ...]] = {}
    for name, shape in tensor_shapes_of(config):
        stem = name.removesuffix(".weight")
        if ".".join(stem.split(".")[3:]) in linears and name != stem:
            outputs, inputs = shape
            shapes[f"{stem}.qweight"] = inputs, outputs // OUTPUTS
            shapes[f"{stem}.qzeros"] = inputs // group, outputs // OUTPUTS
            shapes[f"{stem}.scales"] = inputs // group, outputs
        else:
            shapes[name] = shape
    return shapes


def _layer_tensors(config: LlamaConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    for name, (outputs, inputs) in layer_linears(config).items():
        yield f"{name}.weight", (outputs, inputs)
        if config.attention_bias and name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"):
            yield f"{name}.bias", (outputs,)
    norms = ("self_attn.q_norm", "self_attn.k_norm") if config.head_norm else ()
    for name in norms:
        yield f"{name}.weight", (config.head_dim,)
    for name in ("input_layernorm", "post_attention_layernorm"):
        yield f"{name}.weight", (config.hidden_size,)
