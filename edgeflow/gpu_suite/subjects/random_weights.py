"""Random weights in given shapes, made on the device without any file."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from edgeflow.models.llama import LlamaConfig


class RandomTensors(Mapping[str, Tensor]):
    """Tensors of given names and shapes, made at each access; the same name always gives the same values."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], device: torch.device, dtype: torch.dtype) -> None:
        self._shapes = shapes
        self._device = device
        self._dtype = dtype

    def __getitem__(self, name: str) -> Tensor:
        shape = self._shapes[name]
        if "norm" in name and name.endswith("weight") and len(shape) == 1:
            return torch.ones(shape, dtype=self._dtype, device=self._device)
        generator = torch.Generator(self._device).manual_seed(zlib.crc32(name.encode()))
        scale = shape[-1] ** -0.5 if len(shape) > 1 else 0.02
        return torch.randn(shape, generator=generator, dtype=self._dtype, device=self._device) * scale

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors together; none is made for it."""
        return self._dtype.itemsize * sum(math.prod(shape) for shape in self._shapes.values())

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)


def llama_shapes(text: LlamaConfig, prefix: str = "") -> dict[str, tuple[int, ...]]:
    """Shapes of a decoder's tensors by their published names below `prefix`."""
    width, inner = text.hidden_size, text.intermediate_size
    shapes: dict[str, tuple[int, ...]] = {
        f"{prefix}model.embed_tokens.weight": (text.vocab_size, width),
        f"{prefix}model.norm.weight": (width,),
    }
    if not text.tie_word_embeddings:
        shapes[f"{prefix}lm_head.weight"] = (text.vocab_size, width)
    for index in range(text.num_hidden_layers):
        layer = f"{prefix}model.layers.{index}."
        shapes |= {f"{layer}{name}.weight": (width,) for name in ("input_layernorm", "post_attention_layernorm")}
        shapes |= {
            f"{layer}self_attn.q_proj.weight": (text.q_width, width),
            f"{layer}self_attn.k_proj.weight": (text.kv_width, width),
            f"{layer}self_attn.v_proj.weight": (text.kv_width, width),
            f"{layer}self_attn.o_proj.weight": (width, text.q_width),
            f"{layer}mlp.gate_proj.weight": (inner, width),
            f"{layer}mlp.up_proj.weight": (inner, width),
            f"{layer}mlp.down_proj.weight": (width, inner),
        }
        if text.attention_bias:
            widths = {"q": text.q_width, "k": text.kv_width, "v": text.kv_width}
            shapes |= {f"{layer}self_attn.{name}_proj.bias": (count,) for name, count in widths.items()}
    return shapes
