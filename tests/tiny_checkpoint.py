"""A random OpenVLA checkpoint of the published layout, small enough for every test."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, normalizers
from torch import Tensor

TEXT_PIECES = 128
BINS = 256


@dataclass(frozen=True, slots=True)
class TinySize:
    """Dimensions of the checkpoint; two towers unless v01."""

    hidden: int = 32
    mlp: int = 48
    layers: int = 2
    heads: int = 4
    kv_heads: int = 4
    tower: int = 24
    tower_heads: int = 2
    depth: int = 3
    side: int = 28
    patch: int = 14
    actions: int = 7
    v01: bool = False
    seed: int = 0


def write_checkpoint(directory: Path, size: TinySize | None = None, **config: Any) -> Path:
    """Write the files of a checkpoint; `config` entries override config.json's."""
    size = size or TinySize()
    directory.mkdir(parents=True, exist_ok=True)
    values = {**_config(size), **config}
    (directory / "config.json").write_text(json.dumps(values))
    (directory / "preprocessor_config.json").write_text(json.dumps(_processor(size, values["image_resize_strategy"])))
    _tokenizer().save(str(directory / "tokenizer.json"))
    save_file(_weights(size), directory / "model.safetensors")
    return directory


def _config(size: TinySize) -> dict[str, Any]:
    towers = 1 if size.v01 else 2
    statistics = {
        "q01": [-0.1 * (index + 1) for index in range(size.actions)],
        "q99": [0.2 * (index + 1) for index in range(size.actions)],
        "mask": [True] * (size.actions - 1) + [False],
    }
    kwargs = {"depth": size.depth, "embed_dim": size.tower, "num_heads": size.tower_heads}
    return {
        "model_type": "openvla",
        "image_sizes": [size.side] * towers,
        "image_resize_strategy": "letterbox" if size.v01 else "resize-naive",
        "n_action_bins": BINS,
        "pad_to_multiple_of": 64,
        "norm_stats": {"tiny": {"action": statistics}},
        "use_fused_vision_backbone": not size.v01,
        "timm_model_ids": ["tiny"] * towers,
        "timm_model_kwargs": [kwargs] * towers,
        "text_config": {
            "model_type": "llama",
            "hidden_size": size.hidden,
            "intermediate_size": size.mlp,
            "num_hidden_layers": size.layers,
            "num_attention_heads": size.heads,
            "num_key_value_heads": size.kv_heads,
            "vocab_size": TEXT_PIECES + BINS + 64,
        },
    }


def _processor(size: TinySize, strategy: str) -> dict[str, Any]:
    entries = [{"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}, {"mean": [0.5] * 3, "std": [0.5] * 3}]
    return {"image_resize_strategy": strategy, "tvf_normalize_params": entries[1:] if size.v01 else entries}


def _tokenizer() -> Tokenizer:
    """Characters: Llama's normalisation with one piece a printable character."""
    pieces = ["<unk>", "<s>", "</s>", "▁", "\n", *(chr(code) for code in range(33, 127))]
    vocab = {piece: index for index, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab, [], unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Replace("▁", " ")
    return tokenizer


def _weights(size: TinySize) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(size.seed)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator) * (shape[-1] ** -0.5 if len(shape) > 1 else 0.1)

    tensors: dict[str, Tensor] = {}
    prefixes = ["featurizer"] if size.v01 else ["featurizer", "fused_featurizer"]
    for index, prefix in enumerate(prefixes):
        registers = index == 0 and not size.v01
        tensors |= _tower(size, f"vision_backbone.{prefix}.", random, registers=registers)
    tensors |= _projector(size, len(prefixes), random)
    tensors |= _llama(size, random)
    return tensors


def _tower(size: TinySize, prefix: str, random: Any, *, registers: bool) -> dict[str, Tensor]:
    width = size.tower
    tensors = {
        "patch_embed.proj.weight": random(width, 3, size.patch, size.patch),
        "patch_embed.proj.bias": random(width),
        "pos_embed": random(1, (size.side // size.patch) ** 2, width),
    }
    if registers:
        tensors |= {"cls_token": random(1, 1, width), "reg_token": random(1, 4, width)}
    shapes = {"attn.qkv": (3 * width, width), "attn.proj": (width, width)}
    shapes |= {"mlp.fc1": (4 * width, width), "mlp.fc2": (width, 4 * width)}
    for block in range(size.depth):
        for name, (out, into) in shapes.items():
            tensors |= {f"blocks.{block}.{name}.weight": random(out, into), f"blocks.{block}.{name}.bias": random(out)}
        for norm in ("norm1", "norm2"):
            tensors |= {
                f"blocks.{block}.{norm}.weight": 1 + random(width),
                f"blocks.{block}.{norm}.bias": random(width),
            }
        if registers:
            tensors |= {f"blocks.{block}.{scale}.scale_factor": 1 + random(width) for scale in ("ls1", "ls2")}
    return {prefix + name: tensor for name, tensor in tensors.items()}


def _projector(size: TinySize, towers: int, random: Any) -> dict[str, Tensor]:
    into = size.tower * towers
    widths = [into, size.hidden, size.hidden] if size.v01 else [into, 4 * into, size.hidden, size.hidden]
    tensors = {}
    for index, (before, after) in enumerate(pairwise(widths), start=1):
        tensors |= {f"projector.fc{index}.weight": random(after, before), f"projector.fc{index}.bias": random(after)}
    return tensors


def _llama(size: TinySize, random: Any) -> dict[str, Tensor]:
    vocab, width = TEXT_PIECES + BINS + 64, size.hidden
    keys = size.kv_heads * width // size.heads
    tensors = {
        "model.embed_tokens.weight": random(vocab, width) * 4,
        "model.norm.weight": 1 + random(width),
        "lm_head.weight": random(vocab, width) * 4,
    }
    shapes = {"self_attn.q_proj": (width, width), "self_attn.k_proj": (keys, width), "self_attn.v_proj": (keys, width)}
    shapes |= {"self_attn.o_proj": (width, width), "mlp.gate_proj": (size.mlp, width)}
    shapes |= {"mlp.up_proj": (size.mlp, width), "mlp.down_proj": (width, size.mlp)}
    for layer in range(size.layers):
        tensors |= {f"model.layers.{layer}.{name}.weight": random(*shape) for name, shape in shapes.items()}
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"model.layers.{layer}.{norm}.weight"] = 1 + random(width)
    return {"language_model." + name: tensor for name, tensor in tensors.items()}
