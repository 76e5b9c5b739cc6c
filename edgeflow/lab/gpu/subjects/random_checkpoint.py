"""A checkpoint directory of random weights in OpenVLA's layout, written for a service to load."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers

from edgeflow.lab.gpu.subjects.random_policy import BINS, PADDING, PolicySize, TowerSize, policy_tensors
from edgeflow.models.llama import LlamaConfig

SERVED = PolicySize(
    name="openvla-0.28b",
    text=LlamaConfig(
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=8,
        vocab_size=32064,
    ),
    towers=(
        TowerSize(width=1024, inner=4096, depth=3, heads=16, prefix=5, scaled=True),
        TowerSize(width=1152, inner=4304, depth=3, heads=16),
    ),
    side=224,
    patch=14,
)
"""OpenVLA's layout and image size at about 560 MB in 16 bits: written, read and warmed up in seconds."""


def write_checkpoint(size: PolicySize, folder: Path, device: torch.device, dtype: torch.dtype) -> Path:
    """Write the files of a policy; the weights are made on the device, and are those of `random_policy`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(_config(size)))
    normalisation = [{"mean": [0.5] * 3, "std": [0.5] * 3} for _ in size.towers]
    processor = {"image_resize_strategy": "resize-naive", "tvf_normalize_params": normalisation}
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    _tokenizer().save(str(folder / "tokenizer.json"))
    tensors = {name: tensor.cpu() for name, tensor in policy_tensors(size, device, dtype).items()}
    save_file(tensors, folder / "model.safetensors")
    return folder


def _config(size: PolicySize) -> dict[str, Any]:
    text = size.text
    limits = {"q01": [-1.0] * size.stages, "q99": [1.0] * size.stages, "mask": [True] * size.stages}
    return {
        "model_type": "openvla",
        "image_sizes": [size.side] * len(size.towers),
        "image_resize_strategy": "resize-naive",
        "n_action_bins": BINS,
        "pad_to_multiple_of": PADDING,
        "norm_stats": {"random": {"action": limits}},
        "use_fused_vision_backbone": True,
        "timm_model_ids": ["random"] * len(size.towers),
        "timm_model_kwargs": [{"num_heads": tower.heads} for tower in size.towers],
        "text_config": {
            "model_type": "llama",
            "hidden_size": text.hidden_size,
            "intermediate_size": text.intermediate_size,
            "num_hidden_layers": text.num_hidden_layers,
            "num_attention_heads": text.num_attention_heads,
            "num_key_value_heads": text.num_key_value_heads,
            "vocab_size": text.vocab_size,
        },
    }


def _tokenizer() -> Tokenizer:
    """A tokenizer to which every word is the same: a prompt has as many ids as words and signs."""
    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0, "<s>": 1, "▁": 2}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer
