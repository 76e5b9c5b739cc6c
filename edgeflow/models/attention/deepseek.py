"""Reads latent attention from the config.json of a DeepSeek-V2 or -V3 checkpoint. Its layers must all be dense."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgeflow.models.attention.latent import LatentSizes
from edgeflow_client.errors import CheckpointError

MAX_SIZE = 1 << 20
DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "deepseek_v2": {"n_routed_experts": 64, "first_k_dense_replace": 0, "max_position_embeddings": 2048},
    "deepseek_v3": {"n_routed_experts": 256, "first_k_dense_replace": 3, "max_position_embeddings": 4096},
}
"""What the configuration class of each family says where the file is silent."""
SIZES = {
    "rank": ("kv_lora_rank", 512),
    "rotary": ("qk_rope_head_dim", 64),
    "plain": ("qk_nope_head_dim", 128),
    "value": ("v_head_dim", 128),
    "query_rank": ("q_lora_rank", 1536),
}
"""Fields of `LatentSizes` by their names in the file, with the defaults of both families."""


def latent_sizes(values: Mapping[str, Any], family: str) -> LatentSizes:
    """The sizes of a checkpoint's attention; ValueError names a field of a wrong value."""
    sizes = {field: values.get(name, default) for field, (name, default) in SIZES.items()}
    if sizes["query_rank"] is None:  # one projection of queries
        sizes["query_rank"] = 0
    for field, value in sizes.items():
        least = 0 if field == "query_rank" and values.get("q_lora_rank", 1) is None else 1
        if type(value) is not int or not least <= value <= MAX_SIZE:
            raise ValueError(f"{SIZES[field][0]} must be a whole number from 1 to {MAX_SIZE}, got {value!r}")
    paired = values.get("rope_interleave", True) if family == "deepseek_v3" else True
    if not isinstance(paired, bool):
        raise ValueError(f"rope_interleave must be true or false, got {paired!r}")
    return LatentSizes(**sizes, paired=paired)


def refuse_experts(values: Mapping[str, Any], family: str, where: str) -> None:
    """CheckpointError for a checkpoint that has mixtures of experts. where: in messages, before the rest."""
    names = ("n_routed_experts", "first_k_dense_replace", "num_hidden_layers")
    stated = {**DEFAULTS.get(family, {}), **values}
    experts, dense, layers = (stated.get(name) for name in names)
    if family not in DEFAULTS or not experts or (type(dense) is int and type(layers) is int and dense >= layers):
        return
    raise CheckpointError(
        f"{where}{family} with mixtures of experts (MoE) is not supported, only dense layers are: n_routed_experts is "
        f"{experts}, first_k_dense_replace {dense} of num_hidden_layers {layers}; null experts, or "
        "first_k_dense_replace of at least num_hidden_layers, mean dense layers"
    )
