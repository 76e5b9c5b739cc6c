"""The tensors of small random checkpoints of SmolVLA, π0 and π0.5 by their published names."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiny:
    """The sizes of a checkpoint. inner: of the prefix's stack; of the expert's, 256 where SmolVLA says so."""

    kind: str
    side: int = 16
    patch: int = 4
    scale: int = 2
    vision: int = 8
    vision_layers: int = 2
    vision_heads: int = 2
    width: int = 16
    expert: int = 12
    inner: int = 24
    layers: int = 3
    heads: int = 4
    head_dim: int = 8
    chunk: int = 6
    dims: int = 5
    action: int = 3
    state: int = 3
    steps: int = 3
    seed: int = 0
    history: int = 1
    delay: bool = False
    """Takes a delay of up to MOST_DELAY_MS."""

    @property
    def state_inputs(self) -> int:
        return self.history * self.state + self.history - 1 + self.delay

    @property
    def state_dims(self) -> int:
        return self.state_inputs + 1

    @property
    def kv_heads(self) -> int:
        return 2 if self.kind == "smolvla" else 1

    @property
    def expert_inner(self) -> int:
        return 256 if self.kind == "smolvla" else 20

    def crosses(self, layer: int) -> bool:
        """Whether the expert's layer sees the prefix alone."""
        return self.kind == "smolvla" and layer % 2 == 1

    @property
    def image_rows(self) -> int:
        patches = (self.side // self.patch) ** 2
        return patches // self.scale**2 if self.kind == "smolvla" else patches


_PI = "paligemma_with_expert."
_PI_NAMES = {
    "vision": f"{_PI}paligemma.model.vision_tower.vision_model.",
    "projector": f"{_PI}paligemma.model.multi_modal_projector.linear",
    "embedding": f"{_PI}paligemma.lm_head",
    "text": f"{_PI}paligemma.model.language_model.",
    "expert": f"{_PI}gemma_expert.model.",
}
NAMES: Mapping[str, Mapping[str, str]] = {
    "smolvla": {
        "vision": "vlm_with_expert.vlm.model.vision_model.",
        "projector": "vlm_with_expert.vlm.model.connector.modality_projection.proj",
        "embedding": "vlm_with_expert.vlm.model.text_model.embed_tokens",
        "text": "vlm_with_expert.vlm.model.text_model.",
        "expert": "vlm_with_expert.lm_expert.",
    },
    "pi0": _PI_NAMES,
    "pi05": _PI_NAMES,
}


class _Made:
    """Random tensors by name."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self.tensors: dict[str, Tensor] = {}

    def normal(self, *sizes: int) -> Tensor:
        return torch.randn(sizes, generator=self._generator)

    def linear(self, name: str, outputs: int, inputs: int, *, bias: bool = True) -> None:
        self.tensors[f"{name}.weight"] = self.normal(outputs, inputs) / math.sqrt(inputs)
        if bias:
            self.tensors[f"{name}.bias"] = self.normal(outputs) / 5

    def norm(self, name: str, size: int, *, about: float = 1.0, bias: bool = False) -> None:
        self.tensors[f"{name}.weight"] = about + self.normal(size) / 5
        if bias:
            self.tensors[f"{name}.bias"] = self.normal(size) / 5


def weights_of(tiny: Tiny, vocabulary: int) -> dict[str, Tensor]:
    """All tensors of a checkpoint, without LeRobot's prefix."""
    made, names, smol = _Made(tiny.seed), NAMES[tiny.kind], tiny.kind == "smolvla"
    _vision(made, names["vision"], tiny)
    made.linear(names["projector"], tiny.width, tiny.vision * (tiny.scale**2 if smol else 1), bias=not smol)
    made.linear(names["embedding"], vocabulary, tiny.width, bias=False)
    _stack(made, names["text"], tiny, (tiny.width, tiny.inner), expert=False)
    _stack(made, names["expert"], tiny, (tiny.expert, tiny.expert_inner), expert=True)
    made.linear("action_in_proj", tiny.expert, tiny.dims)
    made.linear("action_out_proj", tiny.dims, tiny.expert)
    if tiny.kind != "pi05":
        made.linear("state_proj", tiny.width if smol else tiny.expert, tiny.state_dims)
    mlp, inputs = ("time_mlp", 1) if tiny.kind == "pi05" else ("action_time_mlp", 2)
    made.linear(f"{mlp}_in", tiny.expert, inputs * tiny.expert)
    made.linear(f"{mlp}_out", tiny.expert, tiny.expert)
    return made.tensors


def _vision(made: _Made, below: str, tiny: Tiny) -> None:
    width, patch = tiny.vision, tiny.patch
    made.tensors[f"{below}embeddings.patch_embedding.weight"] = made.normal(width, 3, patch, patch) / 7
    made.tensors[f"{below}embeddings.patch_embedding.bias"] = made.normal(width) / 5
    made.tensors[f"{below}embeddings.position_embedding.weight"] = made.normal((tiny.side // patch) ** 2, width) / 2
    for index in range(tiny.vision_layers):
        layer = f"{below}encoder.layers.{index}."
        for name in ("layer_norm1", "layer_norm2"):
            made.norm(f"{layer}{name}", width, bias=True)
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            made.linear(f"{layer}self_attn.{name}", width, width)
        made.linear(f"{layer}mlp.fc1", 3 * width, width)
        made.linear(f"{layer}mlp.fc2", width, 3 * width)
    made.norm(f"{below}post_layernorm", width, bias=True)


def _stack(made: _Made, below: str, tiny: Tiny, sizes: tuple[int, int], *, expert: bool) -> None:
    """sizes: width and inner."""
    width, inner = sizes
    queries, keys = tiny.heads * tiny.head_dim, tiny.kv_heads * tiny.head_dim
    norms = []
    for index in range(tiny.layers):
        layer = f"{below}layers.{index}."
        inputs = keys if expert and tiny.crosses(index) else width
        made.linear(f"{layer}self_attn.q_proj", queries, width, bias=False)
        made.linear(f"{layer}self_attn.k_proj", keys, inputs, bias=False)
        made.linear(f"{layer}self_attn.v_proj", keys, inputs, bias=False)
        made.linear(f"{layer}self_attn.o_proj", width, queries, bias=False)
        made.linear(f"{layer}mlp.gate_proj", inner, width, bias=False)
        made.linear(f"{layer}mlp.up_proj", inner, width, bias=False)
        made.linear(f"{layer}mlp.down_proj", width, inner, bias=False)
        norms += [f"{layer}input_layernorm", f"{layer}post_attention_layernorm"]
    for name in (*norms, f"{below}norm"):
        if expert and tiny.kind == "pi05":
            made.linear(f"{name}.dense", 3 * width, width)
        else:
            made.norm(name, width, about=float(tiny.kind == "smolvla"))
