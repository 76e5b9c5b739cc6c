"""Small heads with random weights, written as published ones are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from edgeflow.models.checkpoint import CONFIG_FILE, Weights
from edgeflow.models.eagle3.config import BIN_FILE
from edgeflow.models.llama import LlamaConfig, LlamaDecoder
from edgeflow.text.weight_files import SINGLE_FILE

CPU = torch.device("cpu")
VOCABULARY, DRAFTS = 40, 18
BASE = LlamaConfig(
    hidden_size=24,
    intermediate_size=40,
    num_hidden_layers=7,
    num_attention_heads=3,
    num_key_value_heads=3,
    vocab_size=VOCABULARY,
)
ENTRIES: dict[str, Any] = {
    "hidden_size": 24,
    "intermediate_size": 36,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": VOCABULARY,
    "draft_vocab_size": DRAFTS,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500.0,
    "hidden_act": "silu",
}


def random_tensors(entries: dict[str, Any] = ENTRIES, *, taps: int = 3, bias: bool = False) -> dict[str, Tensor]:
    """The tensors of a head, without an embedding."""
    draw = torch.Generator().manual_seed(11)
    e, f, drafts = entries["hidden_size"], entries["intermediate_size"], entries["draft_vocab_size"]
    q, kv = (entries[name] * entries["head_dim"] for name in ("num_attention_heads", "num_key_value_heads"))
    outputs = {"q": q, "k": kv, "v": kv}
    shapes = {
        "fc.weight": (e, taps * BASE.hidden_size),
        **{f"midlayer.self_attn.{name}_proj.weight": (count, 2 * e) for name, count in outputs.items()},
        "midlayer.self_attn.o_proj.weight": (e, q),
        "midlayer.mlp.gate_proj.weight": (f, e),
        "midlayer.mlp.up_proj.weight": (f, e),
        "midlayer.mlp.down_proj.weight": (e, f),
        "lm_head.weight": (drafts, e),
    }
    tensors = {name: 1.5 * torch.randn(shape, generator=draw) * shape[1] ** -0.5 for name, shape in shapes.items()}
    norms = [f"midlayer.{name}.weight" for name in ("hidden_norm", "input_layernorm", "post_attention_layernorm")]
    tensors |= {name: 1 + 0.3 * torch.randn(e, generator=draw) for name in (*norms, "norm.weight")}
    if bias:
        biases = {f"midlayer.self_attn.{name}_proj.bias": count for name, count in outputs.items()}
        tensors |= {name: torch.randn(count, generator=draw) for name, count in biases.items()}
    if drafts < entries["vocab_size"]:
        targets = torch.randperm(entries["vocab_size"], generator=draw)[:drafts].sort().values
        tensors["d2t"] = targets - torch.arange(drafts)
        tensors["t2d"] = torch.zeros(entries["vocab_size"], dtype=torch.bool).index_fill_(0, targets, True)
    return tensors


def write_head(folder: Path, entries: dict[str, Any], tensors: dict[str, Tensor], *, as_bin: bool = False) -> Path:
    """config.json and the weights."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG_FILE).write_text(json.dumps(entries))
    if as_bin:
        torch.save(tensors, folder / BIN_FILE)
    else:
        save_file(tensors, folder / SINGLE_FILE)
    return folder


def base_tensors(config: LlamaConfig = BASE) -> dict[str, Tensor]:
    """The tensors of a base."""
    draw = torch.Generator().manual_seed(7)
    e, f, q, kv = config.hidden_size, config.intermediate_size, config.q_width, config.kv_width
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(("model.embed_tokens", "lm_head"), (config.vocab_size, e))
    shapes["model.norm"] = (e,)
    for layer in range(config.num_hidden_layers):
        names = {"q_proj": (q, e), "k_proj": (kv, e), "v_proj": (kv, e), "o_proj": (e, q)}
        of_layer = {f"self_attn.{name}": shape for name, shape in names.items()}
        of_layer |= {"mlp.gate_proj": (f, e), "mlp.up_proj": (f, e), "mlp.down_proj": (e, f)}
        of_layer |= {"input_layernorm": (e,), "post_attention_layernorm": (e,)}
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in of_layer.items()}
    return {f"{name}.weight": torch.randn(shape, generator=draw) * shape[-1] ** -0.5 for name, shape in shapes.items()}


def random_base(config: LlamaConfig = BASE, dtype: torch.dtype = torch.float64) -> LlamaDecoder:
    """A decoder with random weights."""
    return LlamaDecoder(config, Weights.of(base_tensors(config), dtype, CPU))
