"""A random AutoAWQ checkpoint, small enough for every test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from edgeflow.lab.kv260.network import gemm_shapes_of
from edgeflow.models.llama import LlamaConfig
from tests.chat_checkpoint import TEMPLATE, VOCAB, tokenizer

GROUP = 32
CONFIG: dict[str, Any] = {
    "model_type": "qwen2",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCAB,
    "max_position_embeddings": 128,
    "tie_word_embeddings": True,
    "torch_dtype": "float16",
    "quantization_config": {
        "quant_method": "awq",
        "bits": 4,
        "group_size": GROUP,
        "zero_point": True,
        "version": "gemm",
        "modules_to_not_convert": None,
    },
}


def decoder_of(**changes: Any) -> LlamaConfig:
    """The decoder's configuration, with fields changed."""
    kept = ("model_type", "torch_dtype", "quantization_config")
    fields = {name: value for name, value in {**CONFIG, **changes}.items() if name not in kept}
    return LlamaConfig(**{"attention_bias": True, **fields})


def write_awq_checkpoint(directory: Path, *, seed: int = 7) -> Path:
    """All files of a chat model of two layers in groups of 32."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(CONFIG))
    (directory / "chat_template.jinja").write_text(TEMPLATE)
    tokenizer().save(str(directory / "tokenizer.json"))
    generator = torch.Generator().manual_seed(seed)
    shapes = gemm_shapes_of(decoder_of(), GROUP)
    save_file(
        {name: _tensor(name, shape, generator) for name, shape in shapes.items()}, directory / "model.safetensors"
    )
    return directory


def _tensor(name: str, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    if name.endswith(("qweight", "qzeros")):
        return torch.randint(-(1 << 31), 1 << 31, shape, generator=generator).to(torch.int32)
    if name.endswith("scales"):
        return (0.005 + 0.02 * torch.rand(shape, generator=generator)).half()
    return torch.randn(shape, generator=generator).half()
