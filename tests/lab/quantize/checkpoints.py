"""Random chat checkpoints to quantise, in one file or in two."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors.torch import save_file

from edgeflow.models.llama import LlamaConfig
from tests.chat_checkpoint import VOCAB, tokenizer
from tests.lab.quantize.cases import random_tensors

CONFIG = LlamaConfig(
    hidden_size=64,
    intermediate_size=100,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=4,
    max_position_embeddings=512,
    vocab_size=VOCAB,
)
INNER = 128
"""The width of the MLP with zeros, for groups of 64."""


def write_source(folder: Path, config: LlamaConfig = CONFIG, *, shards: int = 1) -> Path:
    """The files of a Llama checkpoint in bfloat16."""
    folder.mkdir(parents=True)
    values = asdict(config)
    for name in ("rope", "head_norm", "head_dim"):
        del values[name]
    values |= {"model_type": "llama", "torch_dtype": "bfloat16", "eos_token_id": 1}
    (folder / "config.json").write_text(json.dumps(values))
    (folder / "generation_config.json").write_text('{"eos_token_id": 1}')
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")
    tokenizer().save(str(folder / "tokenizer.json"))
    tensors = {name: tensor.to(torch.bfloat16) for name, tensor in random_tensors(config).items()}
    if shards == 1:
        save_file(tensors, folder / "model.safetensors")
        return folder
    places = {name: f"model-{number % shards}.safetensors" for number, name in enumerate(tensors)}
    for file in set(places.values()):
        save_file({name: tensors[name] for name in tensors if places[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    return folder
