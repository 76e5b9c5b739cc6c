"""Reads a decoder's configuration from config.json: Llama, Qwen2, Qwen3, Qwen2.5-VL's text part, dense DeepSeek."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgeflow.models.attention.deepseek import DEFAULTS as DEEPSEEK
from edgeflow.models.attention.deepseek import latent_sizes
from edgeflow.models.llama import LlamaConfig
from edgeflow.models.rope import PLAIN, Rope

NEEDED = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
OPTIONAL = (
    "num_key_value_heads",
    "rms_norm_eps",
    "rope_theta",
    "max_position_embeddings",
    "tie_word_embeddings",
    "head_dim",
)
# Where the file is silent: what the family's own configuration class says.
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"max_position_embeddings": 2048},
    "qwen2": {"max_position_embeddings": 32768, "attention_bias": True},
    "qwen3": {"max_position_embeddings": 32768, "head_dim": 128, "head_norm": True},
    "qwen2_5_vl": {"max_position_embeddings": 32768, "attention_bias": True},
    **{name: {"max_position_embeddings": each["max_position_embeddings"]} for name, each in DEEPSEEK.items()},
}
FAMILY = "llama"
ACTIVATIONS = ("silu", "swish")  # two names of one function
REFUSED = ("mlp_bias", "use_sliding_window")


def family_of(values: Mapping[str, Any]) -> str:
    """The model_name by which the operators of a checkpoint's decoder are looked up: the model_type that is served, its
    own or that of its text part. values: of config.json."""
    inner = values.get("text_config")
    kinds = [each.get("model_type") for each in (values, inner) if isinstance(each, Mapping)]
    return next((kind for kind in kinds if kind in FAMILIES), FAMILY)


def decoder_config(values: Mapping[str, Any], family: str) -> LlamaConfig:
    """The configuration. values: entries of the text part; ValueError, KeyError or TypeError if not served."""
    if values.get("hidden_act", "silu") not in ACTIVATIONS:
        raise ValueError(f"hidden_act {values['hidden_act']!r} is not supported; supported: {', '.join(ACTIVATIONS)}")
    # Qwen2's attention always has the biases of the family; where others ask for them, the output has one too.
    refused = [*REFUSED, *(["attention_bias"] if not FAMILIES[family].get("attention_bias") else [])]
    for name in refused:
        if values.get(name):
            raise ValueError(f"{name} {values[name]!r} is not supported")
    scaling = values.get("rope_scaling") or values.get("rope_parameters") or {}  # in transformers' order
    given = {name: values[name] for name in OPTIONAL if values.get(name) is not None}
    if "rope_theta" in scaling:
        given["rope_theta"] = scaling["rope_theta"]
    given.setdefault("num_key_value_heads", values["num_attention_heads"])
    if family in DEEPSEEK:
        given["latent"] = latent_sizes(values, family)
    needed = {name: values[name] for name in NEEDED}
    config: dict[str, Any] = {**FAMILIES[family], **needed, **given}
    return LlamaConfig(**config, rope=_rope(scaling, config["max_position_embeddings"]))


def _rope(scaling: Mapping[str, Any], positions: int) -> Rope:
    """RoPE scaling under its newer and older names; "mrope" is the default kind with sections. positions: those of the
    model, from which what is not said follows."""
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if scaling.get("partial_rotary_factor", 1) != 1:
        raise ValueError(
            f"partial_rotary_factor {scaling['partial_rotary_factor']!r} is not supported: RoPE rotates whole heads"
        )
    sections = tuple(scaling.get("mrope_section") or ())
    if kind in ("default", "mrope"):
        return Rope(sections=sections) if sections else PLAIN
    mscales: dict[str, Any] = {name: scaling.get(name) or 0.0 for name in ("mscale", "mscale_all_dim")}
    if kind == "llama3":
        return Rope(
            kind=kind,
            factor=scaling["factor"],
            low=scaling["low_freq_factor"],
            high=scaling["high_freq_factor"],
            trained=scaling["original_max_position_embeddings"],
            sections=sections,
            **mscales,
        )
    if kind == "yarn":
        trained = scaling.get("original_max_position_embeddings") or positions
        return Rope(
            kind=kind,
            factor=positions / trained if scaling.get("factor") is None else scaling["factor"],
            low=scaling.get("beta_slow") or 1.0,
            high=scaling.get("beta_fast") or 32.0,
            trained=trained,
            sections=sections,
            whole=scaling.get("truncate", True),
            magnitude=scaling.get("attention_factor") or 0.0,
            **mscales,
        )
    return Rope(kind=kind, factor=scaling.get("factor", 1.0), sections=sections, **mscales)
