"""Random weights in given shapes, in floats or 4 bits, created on the device without any file."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from edgeflow.kernels.awq import PER_WORD
from edgeflow.models.checkpoint import Weights
from edgeflow.models.llama import LlamaConfig
from edgeflow.models.quantization import PARTS, Quantization

CODE_SPREAD = 4.6
"""Standard deviation of uniformly distributed integers from 0 to 15."""
SEVENS, EIGHTS = 0x77777777, 0x88888888 - (1 << 32)
"""A word of zero points that are all 7, and one that are all 8."""


class RandomTensors(Mapping[str, Tensor]):
    """Tensors of given names and shapes, created at each access; the same name always gives the same values."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], device: torch.device, dtype: torch.dtype) -> None:
        self._shapes = shapes
        self._device = device
        self._dtype = dtype

    def __getitem__(self, name: str) -> Tensor:
        shape = self._shapes[name]
        if "norm" in name and name.endswith("weight") and len(shape) == 1:
            return torch.ones(shape, dtype=self._dtype, device=self._device)
        generator = seeded(name, self._device)
        scale = shape[-1] ** -0.5 if len(shape) > 1 else 0.02
        return torch.randn(shape, generator=generator, dtype=self._dtype, device=self._device) * scale

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors together; computed without creating them."""
        return self._dtype.itemsize * sum(math.prod(shape) for shape in self._shapes.values())

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)


class RandomGemm(Mapping[str, Tensor]):
    """Tensors whose projections below `layers.` are in 4 bits, in AutoAWQ's GEMM layout.

    group: G.
    """

    def __init__(
        self, shapes: Mapping[str, tuple[int, ...]], device: torch.device, dtype: torch.dtype, group: int
    ) -> None:
        quantised = [name for name in shapes if ".layers." in name and name.endswith("_proj.weight")]
        floats = {name: shape for name, shape in shapes.items() if name not in quantised}
        self._floats = RandomTensors(floats, device, dtype)
        self._parts = {
            f"{name.removesuffix('weight')}{part}": (part, shapes[name]) for name in quantised for part in PARTS
        }
        self._group = group
        self._device = device

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._parts:
            return self._floats[name]
        part, (outputs, inputs) = self._parts[name]
        generator, groups = seeded(name, self._device), inputs // self._group
        if part == "scales":
            scales = torch.rand(groups, outputs, generator=generator, device=self._device) + 0.5
            return (scales / (CODE_SPREAD * math.sqrt(inputs))).half()
        shape = inputs if part == "qweight" else groups, outputs // PER_WORD
        words = torch.randint(-(1 << 31), 1 << 31, shape, generator=generator, device=self._device)
        if part == "qzeros":
            words = torch.where(words < 0, SEVENS, EIGHTS)
        return words.to(torch.int32)

    def __iter__(self) -> Iterator[str]:
        yield from self._floats
        yield from self._parts

    def __len__(self) -> int:
        return len(self._floats) + len(self._parts)


def random_weights(
    shapes: Mapping[str, tuple[int, ...]], device: torch.device, dtype: torch.dtype, group: int = 0
) -> Weights:
    """Weights of these shapes. group: G of projections in 4 bits; 0 for floats."""
    if not group:
        return Weights.of(RandomTensors(shapes, device, dtype), dtype, device)
    return Weights.of(RandomGemm(shapes, device, dtype, group), dtype, device, quantization=Quantization(group))


def seeded(name: str, device: torch.device) -> torch.Generator:
    """A generator that gives the same name the same values."""
    return torch.Generator(device).manual_seed(zlib.crc32(name.encode()))


def biased(name: str, *shape: int) -> dict[str, tuple[int, ...]]:
    """Shapes of a weight and of its bias."""
    return {f"{name}.weight": shape, f"{name}.bias": shape[:1]}


def layer_shapes(
    layer: str, width: int, inner: int, q_width: int, kv_width: int, keys: int = 0
) -> dict[str, tuple[int, ...]]:
    """Shapes of a decoder layer's projections.

    keys: the width from which keys and values are projected, by default the layer's.
    """
    return {
        f"{layer}self_attn.q_proj.weight": (q_width, width),
        f"{layer}self_attn.k_proj.weight": (kv_width, keys or width),
        f"{layer}self_attn.v_proj.weight": (kv_width, keys or width),
        f"{layer}self_attn.o_proj.weight": (width, q_width),
        f"{layer}mlp.gate_proj.weight": (inner, width),
        f"{layer}mlp.up_proj.weight": (inner, width),
        f"{layer}mlp.down_proj.weight": (width, inner),
    }


def llama_shapes(text: LlamaConfig, prefix: str = "") -> dict[str, tuple[int, ...]]:
    """Shapes of a decoder's tensors by their published names below `prefix`."""
    width = text.hidden_size
    shapes: dict[str, tuple[int, ...]] = {
        f"{prefix}model.embed_tokens.weight": (text.vocab_size, width),
        f"{prefix}model.norm.weight": (width,),
    }
    if not text.tie_word_embeddings:
        shapes[f"{prefix}lm_head.weight"] = (text.vocab_size, width)
    for index in range(text.num_hidden_layers):
        layer = f"{prefix}model.layers.{index}."
        shapes |= {f"{layer}{name}.weight": (width,) for name in ("input_layernorm", "post_attention_layernorm")}
        shapes |= layer_shapes(layer, width, text.intermediate_size, text.q_width, text.kv_width)
        if text.attention_bias:
            widths = {"q": text.q_width, "k": text.kv_width, "v": text.kv_width}
            shapes |= {f"{layer}self_attn.{name}_proj.bias": (count,) for name, count in widths.items()}
    return shapes
