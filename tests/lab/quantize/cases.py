"""Random decoders that the tests of the search share."""

from __future__ import annotations

import torch
from torch import Tensor

from edgeflow.kernels.awq import rounded
from edgeflow.lab.quantize.search.decoder import DecoderTensors, linear_shapes
from edgeflow.models.checkpoint import Weights
from edgeflow.models.llama import LlamaConfig
from edgeflow.models.rope import Rope

CPU = torch.device("cpu")
SIZE = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 90}
LLAMA3 = Rope(kind="llama3", factor=4.0, low=1.0, high=4.0, trained=32)
CONFIGS = {
    "llama": LlamaConfig(**SIZE, intermediate_size=96, num_key_value_heads=4, rms_norm_eps=1e-5),
    "llama, KV heads shared": LlamaConfig(**SIZE, intermediate_size=96, num_key_value_heads=2, rope=LLAMA3),
    "qwen2": LlamaConfig(**SIZE, intermediate_size=96, num_key_value_heads=4, attention_bias=True),
    "qwen3": LlamaConfig(**SIZE, intermediate_size=96, num_key_value_heads=2, head_dim=32, head_norm=True),
    "tied": LlamaConfig(**SIZE, intermediate_size=96, num_key_value_heads=1, tie_word_embeddings=True),
}


def random_tensors(config: LlamaConfig, seed: int = 0) -> dict[str, Tensor]:
    """The tensors of a checkpoint, far from those a model starts training with: some input channels are large."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator) * (1.5 * shape[-1] ** -0.5 if len(shape) > 1 else 0.2)

    width, head = config.hidden_size, config.head_dim
    tensors = {
        "model.embed_tokens.weight": random(config.vocab_size, width) * 4,
        "model.norm.weight": 1 + random(width),
    }
    if not config.tie_word_embeddings:
        tensors["lm_head.weight"] = random(config.vocab_size, width)
    for layer in range(config.num_hidden_layers):
        prefix = f"model.layers.{layer}."
        for linear, shape in linear_shapes(config).items():
            tensors[f"{prefix}{linear}.weight"] = random(*shape)
            if config.attention_bias and linear.endswith(("q_proj", "k_proj", "v_proj")):
                tensors[f"{prefix}{linear}.bias"] = random(shape[0])
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{prefix}{norm}.weight"] = (2 * random(width)).exp()
        if config.head_norm:
            tensors |= {f"{prefix}self_attn.{name}_norm.weight": 1 + random(head) for name in ("q", "k")}
    return tensors


def random_decoder(config: LlamaConfig, *, inner: int | None = None, seed: int = 0) -> DecoderTensors:
    weights = Weights.of(random_tensors(config, seed), torch.float32, CPU)
    return DecoderTensors.of(weights, config, stem="model.", inner=inner or config.intermediate_size)


def random_ids(config: LlamaConfig, rows: int, length: int) -> Tensor:
    return torch.randint(config.vocab_size, (rows, length), generator=torch.Generator().manual_seed(1))


def naive_limits(weight: Tensor, rows: Tensor, group: int) -> Tensor:
    """The clip limit of each row and group by itself: weight [N, E], inputs [T, E] → [N, E/G]"""
    limits = torch.empty(len(weight), weight.shape[1] // group)
    for row in range(len(weight)):
        for index in range(limits.shape[1]):
            part = slice(index * group, (index + 1) * group)
            w, x = weight[row, part], rows[:, part]
            errors = []
            for step in range(10):
                limit = w.abs().max() * (1 - step / 20)
                values = rounded(w.clamp(-limit, limit)[None], group).values[0]
                errors.append((((x * values).sum(1) - (x * w).sum(1)) ** 2).mean().item())
            limits[row, index] = w.abs().max() * (1 - errors.index(min(errors)) / 20)
    return limits
