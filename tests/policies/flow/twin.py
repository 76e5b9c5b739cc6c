"""SmolVLA, π0 and π0.5 written out for one frame: float64, whole attention matrices, no slots, no packing."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from edgeflow.engine.flow.frames import FlowFrame
from tests.policies.flow.weights import NAMES, Tiny

Pairs = list[tuple[Tensor, Tensor]]


class FlowPolicyTwin:
    """weights: by published name, without LeRobot's prefix."""

    def __init__(self, tiny: Tiny, weights: Mapping[str, Tensor]) -> None:
        self.tiny, self.smol, self.adaptive = tiny, tiny.kind == "smolvla", tiny.kind == "pi05"
        self._weights = {name: each.double() for name, each in weights.items()}
        self._names = NAMES[tiny.kind]
        self._eps = 1e-5 if self.smol else 1e-6

    def chunk(self, frame: FlowFrame, candidate: int = 0) -> Tensor:
        """The answer to a frame [H, A]."""
        state = frame.state.double()
        pairs = self._prefix(frame, state)
        x = frame.noise[candidate].double()
        for step in range(self.tiny.steps):
            x = x - self._velocity(x, 1 - step / self.tiny.steps, state, pairs) / self.tiny.steps
        return x

    def images(self, pixels: Tensor) -> Tensor:
        """[C, 3, side, side] → [C, rows, E]"""
        below, width = self._names["vision"], self.tiny.vision
        kernel, bias = (self._weights[f"{below}embeddings.patch_embedding.{part}"] for part in ("weight", "bias"))
        x = F.conv2d(pixels.double(), kernel, bias, stride=self.tiny.patch).flatten(2).transpose(1, 2)
        x = x + self._weights[f"{below}embeddings.position_embedding.weight"]
        for index in range(self.tiny.vision_layers):
            layer = f"{below}encoder.layers.{index}."
            n = self._layer_norm(f"{layer}layer_norm1", x)
            q, k, v = (self._linear(f"{layer}self_attn.{name}_proj", n) for name in "qkv")
            q, k, v = (each.unflatten(-1, (self.tiny.vision_heads, -1)).transpose(1, 2) for each in (q, k, v))
            scores = (q @ k.transpose(2, 3) / math.sqrt(q.shape[-1])).softmax(-1)
            x = x + self._linear(f"{layer}self_attn.out_proj", (scores @ v).transpose(1, 2).flatten(2))
            hidden = self._linear(f"{layer}mlp.fc1", self._layer_norm(f"{layer}layer_norm2", x))
            x = x + self._linear(f"{layer}mlp.fc2", F.gelu(hidden, approximate="tanh"))
        x = self._layer_norm(f"{below}post_layernorm", x)
        if not self.smol:
            return self._linear(self._names["projector"], x)
        side, scale = self.tiny.side // self.tiny.patch, self.tiny.scale
        grid = x.view(len(x), side, side, width)
        tokens = [
            grid[:, i : i + scale, j : j + scale].flatten(1)
            for i in range(0, side, scale)
            for j in range(0, side, scale)
        ]
        return self._linear(self._names["projector"], torch.stack(tokens, dim=1)) * math.sqrt(self.tiny.width)

    def _prefix(self, frame: FlowFrame, state: Tensor) -> Pairs:
        """Keys and values of the prefix in each layer as the expert sees them."""
        words = self._weights[f"{self._names['embedding']}.weight"][list(frame.prompt_ids)]
        parts = [self.images(frame.pixel_values).flatten(0, 1), words * math.sqrt(self.tiny.width)]
        if self.smol:
            parts.append(self._linear("state_proj", state)[None])
        x = torch.cat(parts)
        sees = torch.ones(len(x), len(x), dtype=torch.bool)
        if self.smol:
            sees[:-1, -1] = False
        pairs: Pairs = []
        for index in range(self.tiny.layers):
            layer = f"{self._names['text']}layers.{index}."
            q, k, v = self._qkv(layer, self._norm(f"{layer}input_layernorm", x), torch.arange(len(x)))
            x = x + self._linear(f"{layer}self_attn.o_proj", _attend(q, k, v, sees))
            x = x + self._mlp(layer, self._norm(f"{layer}post_attention_layernorm", x))
            if self.tiny.crosses(index):
                own = f"{self._names['expert']}layers.{index}.self_attn."
                k, v = (
                    self._linear(f"{own}{n}_proj", each.flatten(1)).view_as(each) for n, each in (("k", k), ("v", v))
                )
            pairs.append((k, v))
        return pairs

    def _velocity(self, x: Tensor, time: float, state: Tensor, pairs: Pairs) -> Tensor:
        rows, condition = self._step_rows(x, time, state)
        before, count, lead = len(pairs[0][0]), len(rows), len(rows) - len(x)
        sees = torch.ones(count, before + count, dtype=torch.bool)
        sees[:lead, before + lead :] = False
        if self.smol:
            sees[:, before:] = torch.ones(count, count).tril().bool()
        for index in range(self.tiny.layers):
            layer = f"{self._names['expert']}layers.{index}."
            n, gate = self._modulated(f"{layer}input_layernorm", rows, condition)
            if self.tiny.crosses(index):
                q = self._heads(self._linear(f"{layer}self_attn.q_proj", n))
                attended = _attend(_rotated(q, torch.arange(count)), *pairs[index], sees[:, :before])
            else:
                q, k, v = self._qkv(layer, n, before + torch.arange(count))
                k, v = torch.cat([pairs[index][0], k]), torch.cat([pairs[index][1], v])
                attended = _attend(q, k, v, sees)
            rows = rows + gate * self._linear(f"{layer}self_attn.o_proj", attended)
            n, gate = self._modulated(f"{layer}post_attention_layernorm", rows, condition)
            rows = rows + gate * self._mlp(layer, n)
        rows = self._modulated(f"{self._names['expert']}norm", rows, condition)[0]
        return self._linear("action_out_proj", rows[lead:])

    def _step_rows(self, x: Tensor, time: float, state: Tensor) -> tuple[Tensor, Tensor | None]:
        """Rows of a step, and the condition of the norms."""
        half = self.tiny.expert // 2
        periods = 4e-3 * (4.0 / 4e-3) ** torch.linspace(0, 1, half, dtype=torch.float64)
        angles = 2 * math.pi * time / periods
        embedded = torch.cat([angles.sin(), angles.cos()])
        rows = self._linear("action_in_proj", x)
        if self.adaptive:
            return rows, F.silu(self._linear("time_mlp_out", F.silu(self._linear("time_mlp_in", embedded))))
        both = torch.cat([rows, embedded.expand(len(rows), -1)], dim=1)
        rows = self._linear("action_time_mlp_out", F.silu(self._linear("action_time_mlp_in", both)))
        if not self.smol:
            rows = torch.cat([self._linear("state_proj", state)[None], rows])
        return rows, None

    def _linear(self, name: str, x: Tensor) -> Tensor:
        y = x @ self._weights[f"{name}.weight"].T
        return y + self._weights[f"{name}.bias"] if f"{name}.bias" in self._weights else y

    def _layer_norm(self, name: str, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], self._weights[f"{name}.weight"], self._weights[f"{name}.bias"], 1e-6)

    def _plain(self, x: Tensor) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + self._eps).sqrt()

    def _norm(self, name: str, x: Tensor) -> Tensor:
        return self._plain(x) * (self._weights[f"{name}.weight"] + (0 if self.smol else 1))

    def _modulated(self, name: str, x: Tensor, condition: Tensor | None) -> tuple[Tensor, Tensor | float]:
        if condition is None:
            return self._norm(name, x), 1.0
        scale, shift, gate = self._linear(f"{name}.dense", condition).chunk(3)
        return self._plain(x) * (1 + scale) + shift, gate

    def _mlp(self, layer: str, x: Tensor) -> Tensor:
        gate, up = (self._linear(f"{layer}mlp.{name}_proj", x) for name in ("gate", "up"))
        bent = F.silu(gate) if self.smol else F.gelu(gate, approximate="tanh")
        return self._linear(f"{layer}mlp.down_proj", bent * up)

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(len(x), -1, self.tiny.head_dim)

    def _qkv(self, layer: str, x: Tensor, places: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = (self._heads(self._linear(f"{layer}self_attn.{name}_proj", x)) for name in "qkv")
        return _rotated(q, places), _rotated(k, places), v


def _rotated(x: Tensor, places: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    angles = places[:, None] * 10_000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def _attend(q: Tensor, k: Tensor, v: Tensor, sees: Tensor) -> Tensor:
    k, v = (each.repeat_interleave(q.shape[1] // each.shape[1], dim=1) for each in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) / math.sqrt(q.shape[-1])
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(~sees, -torch.inf).softmax(-1), v).flatten(1)
