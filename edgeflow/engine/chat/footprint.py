"""The memory of a chat model's weights, from the headers of its files."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import torch

from edgeflow.engine.chat.precision import AUTO
from edgeflow.kernels.linear import packed_dtypes
from edgeflow.kernels.weights import FLOAT, Int8Weight
from edgeflow.models.chat import read_published
from edgeflow.models.checkpoint import tensor_shapes
from edgeflow.models.llama import LlamaConfig
from edgeflow.models.quantization import PARTS, quantised_bytes

SCALE_BYTES = torch.float32.itemsize
"""Bytes of the scale that an output in 8 bits has."""


def weight_bytes(weights: str, path: Path, dtype: torch.dtype, device: torch.device, head: str = FLOAT) -> int:
    """The memory of a checkpoint's loaded weights in bytes; `auto`: the larger of its choices.

    Weights that are stored in 4 bits stay so, but for those that attention absorbs, which are always floats. int8
    weights are stored beside those in `dtype`. fp8 weights replace those of the projections and the head; they take one
    byte each on CUDA and, being emulated, as many as `dtype` on a CPU. A head in int8 takes a byte per weight and its
    scales, and replaces the embedding if it is tied; a tied float head is stored apart from it where it is packed.
    Other scales are not counted, and neither are second copies of float weights for which an operator overlay chooses
    several implementations; of quantised ones there are none (kernels/table/bind_linear.py).
    """
    published = read_published(path)
    text = published.text
    shapes = _as_held(tensor_shapes(path), text)
    quantised = quantised_bytes(shapes)
    floats = sum(math.prod(shape) for name, shape in shapes.items() if name not in quantised)
    of_head = text.vocab_size * text.hidden_size
    held = sum(quantised.values())
    if head == Int8Weight.format:
        floats -= of_head
        held += of_head + text.vocab_size * SCALE_BYTES
    packs = device.type == "cpu" and dtype in packed_dtypes()
    apart = of_head if head == FLOAT and text.tie_word_embeddings else 0
    plain = held + (floats + apart * packs) * dtype.itemsize
    stored = AUTO[device.type] if weights == "auto" else weights
    if stored == FLOAT or published.quantization is not None:
        return plain
    if stored == Int8Weight.format:
        return plain + floats
    converted = _projections(text) + (of_head if head == FLOAT else 0)
    size = 1 if device.type == "cuda" else dtype.itemsize
    replaced = held + (floats - converted + apart) * dtype.itemsize + converted * size
    return max(plain, replaced) if weights == "auto" else replaced


def _as_held(shapes: Mapping[str, tuple[int, ...]], text: LlamaConfig) -> dict[str, tuple[int, ...]]:
    """Shapes of what is loaded: a projection that attention absorbs is read as floats, however it is stored."""
    held = dict(shapes)
    for name in shapes:
        module, _, part = name.rpartition(".")
        shape = text.attention.absorbed.get(module.rpartition(".")[2])
        if part in PARTS and shape is not None:
            del held[name]
            held[f"{module}.weight"] = shape
    return held


def _projections(text: LlamaConfig) -> int:
    """Weights of the projections, in numbers."""
    attention = sum(math.prod(shape) for shape in text.attention.linears.values())
    return text.num_hidden_layers * (attention + 3 * text.hidden_size * text.intermediate_size)
