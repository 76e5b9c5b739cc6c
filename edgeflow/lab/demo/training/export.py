"""Writes the policy in the published OpenVLA layout: config, processor, tokenizer, bf16 weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor

from edgeflow.lab.demo.training.actions import DATASET_KEY, NAMES, UNITS, norm_stats
from edgeflow.lab.demo.training.data import Dataset
from edgeflow.lab.demo.training.network import (
    BINS,
    CHANNEL_MEANS,
    CHANNEL_STDS,
    NetworkSize,
    PolicyNetwork,
    TowerDimensions,
)
from edgeflow.lab.demo.training.tokenizer import save_tokenizer
from edgeflow.lab.outputs import write_json

_TIMM_IDS = ("vit_large_patch14_reg4_dinov2.lvd142m", "vit_so400m_patch14_siglip_224")


def write_checkpoint(folder: Path, network: PolicyNetwork, tokenizer: Tokenizer, data: Dataset) -> Path:
    """Write a complete model directory; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    size = network.size
    actions = torch.from_numpy(data.actions[data.visible])
    write_json(folder / "config.json", _config(size, norm_stats(actions, len(data))))
    write_json(folder / "preprocessor_config.json", _preprocessor(size.towers[0].img_size))
    generation = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": size.text_vocab}
    write_json(folder / "generation_config.json", {"_from_model_config": True, **generation})
    save_tokenizer(tokenizer, folder)
    weights = {**network.state_dict(), **_unused(size)}
    shipped = {name: weight.detach().cpu().to(torch.bfloat16).contiguous() for name, weight in weights.items()}
    save_file(shipped, folder / "model.safetensors", {"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    return folder


def _unused(size: NetworkSize) -> dict[str, Tensor]:
    """Zeros for the tensors of the published layout that inference never reads: each tower's last block and final
    norm, and the second tower's attention pooling."""
    dead: dict[str, Tensor] = {}
    for prefix, tower in zip(("featurizer", "fused_featurizer"), size.towers, strict=True):
        e, inner, last = tower.embed_dim, int(tower.embed_dim * tower.mlp_ratio), tower.depth - 1
        shapes = {**_linear("attn.qkv", e, 3 * e), **_linear("attn.proj", e, e)}
        shapes |= {
            **_linear("mlp.fc1", e, inner),
            **_linear("mlp.fc2", inner, e),
            **_norm("norm1", e),
            **_norm("norm2", e),
        }
        if prefix == "featurizer":
            shapes |= {"ls1.scale_factor": (e,), "ls2.scale_factor": (e,)}
        shapes = {f"blocks.{last}.{name}": shape for name, shape in shapes.items()} | _norm("norm", e)
        if prefix == "fused_featurizer":
            shapes |= _pooling(e, inner)
        dead |= {f"vision_backbone.{prefix}.{name}": torch.zeros(shape) for name, shape in shapes.items()}
    return dead


def _linear(name: str, inner: int, outer: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (outer, inner), f"{name}.bias": (outer,)}


def _norm(name: str, width: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def _pooling(e: int, inner: int) -> dict[str, tuple[int, ...]]:
    shapes = {"latent": (1, 1, e), **_linear("q", e, e), **_linear("kv", e, 2 * e), **_linear("proj", e, e)}
    shapes |= {**_norm("norm", e), **_linear("mlp.fc1", e, inner), **_linear("mlp.fc2", inner, e)}
    return {f"attn_pool.{name}": shape for name, shape in shapes.items()}


def _config(size: NetworkSize, stats: dict[str, Any]) -> dict[str, Any]:
    text = {
        "model_type": "llama",
        "hidden_size": size.hidden,
        "intermediate_size": size.mlp,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.heads,
        "pad_token_id": size.text_vocab,
        "torch_dtype": "bfloat16",
        "vocab_size": size.vocab,
    }
    return {
        "architectures": ["OpenVLAForActionPrediction"],
        "model_type": "openvla",
        "arch_specifier": "no-align+fused-gelu-mlp",
        "vision_backbone_id": "dinosiglip-vit-so-224px",
        "llm_backbone_id": "llama2-7b-pure",
        "hf_llm_id": "meta-llama/Llama-2-7b-hf",
        "timm_model_ids": list(_TIMM_IDS),
        "timm_model_kwargs": [_tower(tower) for tower in size.towers],
        "timm_override_act_layers": [None, None],
        "use_fused_vision_backbone": True,
        "image_sizes": [tower.img_size for tower in size.towers],
        "image_resize_strategy": "resize-naive",
        "llm_max_length": 2048,
        "n_action_bins": BINS,
        "output_projector_states": False,
        "pad_to_multiple_of": size.pad,
        "pad_token_id": size.text_vocab,
        "text_config": text,
        "torch_dtype": "bfloat16",
        "norm_stats": stats,
        "edgeflow_action": _action_schema(),
    }


def _tower(tower: TowerDimensions) -> dict[str, Any]:
    names = ("img_size", "patch_size", "depth", "embed_dim", "num_heads", "mlp_ratio")
    return {name: getattr(tower, name) for name in names}


def _action_schema() -> dict[str, Any]:
    relative = [name != "gripper" for name in NAMES]
    return {
        "names": list(NAMES),
        "units": list(UNITS),
        "relative": relative,
        "frame": "tool",
        "rotation": "rotvec",
        "whole_way": True,
        "norm_stats_key": DATASET_KEY,
    }


def _preprocessor(side: int) -> dict[str, Any]:
    normalise = [
        {"inplace": False, "mean": list(mean), "std": list(std)}
        for mean, std in zip(CHANNEL_MEANS, CHANNEL_STDS, strict=True)
    ]
    resize = {"antialias": True, "interpolation": 3, "max_size": None, "size": [side, side]}
    return {
        "image_processor_type": "PrismaticImageProcessor",
        "processor_class": "PrismaticProcessor",
        "image_resize_strategy": "resize-naive",
        "input_sizes": [[3, side, side]] * 2,
        "interpolations": ["bicubic", "bicubic"],
        "means": [list(mean) for mean in CHANNEL_MEANS],
        "stds": [list(std) for std in CHANNEL_STDS],
        "tvf_crop_params": [{"output_size": [side, side]}] * 2,
        "tvf_do_letterbox": False,
        "tvf_letterbox_fill": None,
        "tvf_normalize_params": normalise,
        "tvf_resize_params": [resize] * 2,
        "use_fused_vision_backbone": True,
    }
