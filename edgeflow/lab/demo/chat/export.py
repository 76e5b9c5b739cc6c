"""Writes the chat model in the published Qwen2 layout: config, tokenizer with chat template, bf16 weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

from edgeflow.lab.demo.chat.network import EPS, ChatNetwork, ChatSize
from edgeflow.lab.demo.chat.tokenizer import END, END_OF_TEXT, MAX_LENGTH, save_tokenizer
from edgeflow.lab.outputs import write_json


def write_chat_checkpoint(folder: Path, network: ChatNetwork, tokenizer: Tokenizer) -> Path:
    """Write a complete model directory; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    end, pad = tokenizer.token_to_id(END), tokenizer.token_to_id(END_OF_TEXT)
    write_json(folder / "config.json", {**_config(network.size), "eos_token_id": end, "pad_token_id": pad})
    generation = {"do_sample": False, "eos_token_id": [end, pad], "pad_token_id": pad}
    write_json(folder / "generation_config.json", generation)
    save_tokenizer(tokenizer, folder)
    weights = {
        name: weight.detach().cpu().to(torch.bfloat16).contiguous() for name, weight in network.state_dict().items()
    }
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


def _config(size: ChatSize) -> dict[str, Any]:
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "hidden_act": "silu",
        "hidden_size": size.hidden,
        "initializer_range": 0.02,
        "intermediate_size": size.mlp,
        "max_position_embeddings": MAX_LENGTH,
        "max_window_layers": size.layers,
        "num_attention_heads": size.heads,
        "num_hidden_layers": size.layers,
        "num_key_value_heads": size.heads,
        "rms_norm_eps": EPS,
        "rope_theta": size.theta,
        "sliding_window": None,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": size.vocab,
    }
