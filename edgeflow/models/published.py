"""Reads a chat checkpoint's JSON files: sizes of the decoder and of the vision tower, sampling defaults, quantisation.

Decoders of Llama, Qwen2, Qwen3, Qwen2.5-VL's text part, and of DeepSeek-V2 and -V3 whose layers are all dense.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgeflow.kernels.kv.formats import DENSE
from edgeflow.models.attention.latent import LatentSizes
from edgeflow.models.llama import MAX_SIZE, LlamaConfig
from edgeflow.models.quantization import Quantization
from edgeflow.models.qwen2_5_vl import ImageRules, VisionConfig
from edgeflow.models.rope import PLAIN, Rope
from edgeflow.text.checkpoint_json import read_json
from edgeflow_client.errors import CheckpointError

DEEPSEEK: Mapping[str, Mapping[str, Any]] = {
    "deepseek_v2": {"n_routed_experts": 64, "first_k_dense_replace": 0, "max_position_embeddings": 2048},
    "deepseek_v3": {"n_routed_experts": 256, "first_k_dense_replace": 3, "max_position_embeddings": 4096},
}
"""The values of each family's configuration class where the file is silent."""
LATENT_SIZES = {
    "rank": ("kv_lora_rank", 512),
    "rotary": ("qk_rope_head_dim", 64),
    "plain": ("qk_nope_head_dim", 128),
    "value": ("v_head_dim", 128),
    "query_rank": ("q_lora_rank", 1536),
}
"""Fields of `LatentSizes` by their names in the file, with the defaults of both families."""

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
UNSUPPORTED = ("mlp_bias", "use_sliding_window")


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
    unsupported = [*UNSUPPORTED, *(["attention_bias"] if not FAMILIES[family].get("attention_bias") else [])]
    for name in unsupported:
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


def latent_sizes(values: Mapping[str, Any], family: str) -> LatentSizes:
    """The sizes of a checkpoint's attention; ValueError names a field of a wrong value."""
    sizes = {field: values.get(name, default) for field, (name, default) in LATENT_SIZES.items()}
    if sizes["query_rank"] is None:  # one projection of queries
        sizes["query_rank"] = 0
    for field, value in sizes.items():
        least = 0 if field == "query_rank" and values.get("q_lora_rank", 1) is None else 1
        if type(value) is not int or not least <= value <= MAX_SIZE:
            raise ValueError(f"{LATENT_SIZES[field][0]} must be an integer from 1 to {MAX_SIZE}, got {value!r}")
    paired = values.get("rope_interleave", True) if family == "deepseek_v3" else True
    if not isinstance(paired, bool):
        raise ValueError(f"rope_interleave must be true or false, got {paired!r}")
    return LatentSizes(**sizes, paired=paired)


def reject_experts(values: Mapping[str, Any], family: str, where: str) -> None:
    """CheckpointError for a checkpoint that has mixtures of experts. where: in messages, before the rest."""
    names = ("n_routed_experts", "first_k_dense_replace", "num_hidden_layers")
    stated = {**DEEPSEEK.get(family, {}), **values}
    experts, dense, layers = (stated.get(name) for name in names)
    if family not in DEEPSEEK or not experts or (type(dense) is int and type(layers) is int and dense >= layers):
        return
    raise CheckpointError(
        f"{where}{family} with mixtures of experts (MoE) is not supported, only dense layers are: n_routed_experts is "
        f"{experts}, first_k_dense_replace {dense} of num_hidden_layers {layers}; null experts, or "
        "first_k_dense_replace of at least num_hidden_layers, mean dense layers"
    )


BOUNDS = {"temperature": (0.0, 2.0), "top_p": (0.0, 1.0), "min_p": (0.0, 1.0), "repetition_penalty": (0.01, 10.0)}


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationConfig:
    """Sampling defaults of a checkpoint; temperature 0 is greedy, top_k 0 is off."""

    stop_ids: frozenset[int]
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    @classmethod
    def of(cls, config: Mapping[str, Any], values: Mapping[str, Any]) -> GenerationConfig:
        """config: config.json, which ends answers where generation_config.json (values) does not say; newer ones of
        models with images do so in text_config."""
        places = (values, config, config.get("text_config") or {})
        ends: Any = next((each["eos_token_id"] for each in places if each.get("eos_token_id") is not None), [])
        ids = ends if isinstance(ends, list) else [ends]
        if not all(type(each) is int and each >= 0 for each in ids):
            raise ValueError(f"eos_token_id must be a token id or a list of them, got {ends!r}")
        given = {name: values[name] for name in (*BOUNDS, "top_k") if values.get(name) is not None}
        if not values.get("do_sample"):
            given = {name: given[name] for name in ("repetition_penalty",) if name in given}
        else:
            given.setdefault("temperature", 1.0)
        for name, (least, most) in BOUNDS.items():
            value = given.get(name, least)
            if type(value) not in (int, float) or not math.isfinite(value) or not least <= value <= most:
                raise ValueError(f"generation_config {name} must be {least} to {most}, got {value!r}")
        if type(given.get("top_k", 0)) is not int or given.get("top_k", 0) < -1:
            raise ValueError(f"generation_config top_k must be an integer, at least -1, got {given['top_k']!r}")
        if given.get("top_k") == -1:  # off, as 0
            given["top_k"] = 0
        return cls(stop_ids=frozenset(ids), **given)


@dataclass(frozen=True, slots=True)
class PublishedChat:
    """A checkpoint's JSON files, read and checked."""

    family: str
    text: LlamaConfig
    vision: tuple[VisionConfig, ImageRules] | None
    """The sizes of the tower and the rules of images; None for a model without images."""
    generation: GenerationConfig
    quantization: Quantization | None = None
    """The format of weights in 4 bits; None for a model of floats."""


def read_published(path: Path) -> PublishedChat:
    """Read the JSON files of a checkpoint directory; CheckpointError says what is wrong with them."""
    if not path.is_dir():
        raise CheckpointError(f"{path} is not a directory: give the directory of a checkpoint")
    values = read_json(path / "config.json")
    family = values.get("model_type")
    if not isinstance(family, str) or family not in FAMILIES:
        raise CheckpointError(f"{path} has model_type {family!r}; supported: {', '.join(FAMILIES)}")
    try:
        entries = _text_values(values)
        reject_experts(entries, family, f"{path}: ")
        text = decoder_config(entries, family)
        vision = _vision_config(values, path) if "vision_config" in values else None
        if (family == "qwen2_5_vl") != (vision is not None):
            raise ValueError(f"{family} {'needs a' if vision is None else 'has no'} vision_config")
        generation = GenerationConfig.of(values, read_json(path / "generation_config.json", required=False))
    except KeyError as error:
        raise CheckpointError(f"{path}: the configuration lacks {error.args[0]}") from error
    except ValueError as error:
        raise CheckpointError(f"{path}: the configuration is not supported: {error}") from error
    except (TypeError, AttributeError) as error:
        raise CheckpointError(f"{path}: the configuration has a value of the wrong type: {error}") from error
    return PublishedChat(family, text, vision, generation, Quantization.of(values, f"{path}: "))


def unfit_for_gates(published: PublishedChat) -> str:
    """The reason why a gate cannot serve such a model; empty where it can."""
    if published.vision is not None:
        parts = len(published.text.rope.sections)
        return f"a {published.family} with images: its positions have {parts} parts, those of a gate's base one"
    stored = published.text.attention.kv_format
    if stored is not DENSE:
        return f"a {published.family}: its slots are {stored.name}, a gate reads the keys and values of heads"
    if published.text.rope.turn_factor != 1:
        return f"a {published.family} with rotary embeddings of type yarn"
    return ""


def _text_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Entries of the text part, which newer files nest in text_config; outer entries win."""
    inner = values.get("text_config", {})
    outer = {name: value for name, value in values.items() if name == "tie_word_embeddings"}
    return {**inner, **outer} if inner else dict(values)


def _vision_config(values: dict[str, Any], path: Path) -> tuple[VisionConfig, ImageRules]:
    processor = read_json(path / "preprocessor_config.json", required=False)
    processor = processor or read_json(path / "processor_config.json").get("image_processor", {})
    return VisionConfig.of(values), ImageRules.of(processor)
