"""A flow policy written out for one frame: dense masks, whole attention matrices, float64, no slots."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from edgeflow.engine.flow.frames import FlowFrame
from edgeflow.models.grouped import CROSS
from tests.engine.flow.tiny_flow import PATCHES, Shape


class FlowTwin:
    """Computes one frame. weights: as in `weights_of`."""

    def __init__(self, shape: Shape, weights: Mapping[str, Tensor]) -> None:
        self.shape = shape
        self.weights = {name: each.double() for name, each in weights.items()}

    def steps(self, frame: FlowFrame) -> list[Tensor]:
        """x before each step of every candidate, and the answer: N + 1 of [M, H, A]."""
        kv = self._prefix(frame)
        chunks = [self._denoise(frame, noise.double(), kv) for noise in frame.noise]
        return [torch.stack(each) for each in zip(*chunks, strict=True)]

    def _denoise(self, frame: FlowFrame, x: Tensor, kv: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
        steps, guidance = self.shape.sizes.steps, frame.guidance
        found = []
        for step in range(steps):
            time = 1.0 - step / steps
            if guidance is not None:
                x = torch.cat([guidance.target[: guidance.clean].double(), x[guidance.clean :]])
            found.append(x)
            v = self._velocity(frame, x, time, kv)
            if guidance is not None:
                tau = 1 - time
                pull = guidance.most
                if tau > 0:
                    pull = min(pull, (1 - tau) / tau * ((1 - tau) ** 2 + tau**2) / (1 - tau) ** 2)
                v = v - pull * (guidance.target.double() - (x - time * v)) * guidance.weights.double()[:, None]
            x = x - v / steps
            if guidance is not None:
                x = torch.cat([guidance.target[: guidance.clean].double(), x[guidance.clean :]])
        return [*found, x]

    def _prefix(self, frame: FlowFrame) -> list[tuple[Tensor, Tensor]]:
        """What suffix rows see of the prefix in each layer: keys and values [L_P, KH, D]."""
        w, closing = self.weights, self.shape.sizes.closing
        patches = frame.pixel_values.double().reshape(len(frame.pixel_values) * PATCHES, -1)
        parts = [patches @ w["patch"].T, w["words"][list(frame.prompt_ids)]]
        if closing:
            parts.append((frame.state.double() @ w["closing"].T)[None])
        h = torch.cat(parts)
        rows = len(h)
        sees = torch.ones(rows, rows, dtype=torch.bool)
        sees[: rows - closing, rows - closing :] = False
        kv = []
        for index, kind in enumerate(self.shape.kinds):
            own = f"prefix.layers.{index}."
            x = self._norm(h, f"{own}input_layernorm")
            q, k, v = self._qkv(own, x, torch.arange(rows))
            h = h + self._attend(q, k, v, sees) @ w[f"{own}self_attn.o_proj.weight"].T
            h = h + self._mlp(own, self._norm(h, f"{own}post_attention_layernorm"), self.shape.stacks[1].gelu)
            if kind == CROSS:
                other = f"suffix.layers.{index}.self_attn."
                k, v = (
                    (each.flatten(1) @ w[f"{other}{name}_proj.weight"].T).view_as(each)
                    for each, name in ((k, "k"), (v, "v"))
                )
            kv.append((k, v))
        return kv

    def _velocity(self, frame: FlowFrame, x: Tensor, time: float, kv: list[tuple[Tensor, Tensor]]) -> Tensor:
        w, sizes = self.weights, self.shape.sizes
        times = torch.full((sizes.horizon, 1), time, dtype=torch.float64)
        if frame.guidance is not None:
            times[: frame.guidance.clean] = 0.0
        turned = torch.sin(times * 3 + w["time"])
        h = x @ w["action_in"].T
        condition = turned if self.shape.adaptive else None
        if condition is None:
            h = h + turned
        if sizes.lead:
            h = torch.cat([(frame.state.double() @ w["lead"].T)[None], h])
        prefix, rows = len(kv[0][0]), len(h)
        sees = torch.ones(rows, prefix + rows, dtype=torch.bool)
        for row in range(rows):
            end = sizes.lead if row < sizes.lead else row + 1 if sizes.causal else rows
            sees[row, prefix + end :] = False
        for index, kind in enumerate(self.shape.kinds):
            own = f"suffix.layers.{index}."
            n, gate = self._adapted(h, f"{own}input_layernorm", condition)
            if kind == CROSS:
                q = self._rotated(self._heads(n @ w[f"{own}self_attn.q_proj.weight"].T), torch.arange(rows))
                attended = self._attend(q, *kv[index], sees[:, :prefix])
            else:
                q, k, v = self._qkv(own, n, prefix + torch.arange(rows))
                attended = self._attend(q, torch.cat([kv[index][0], k]), torch.cat([kv[index][1], v]), sees)
            h = h + gate * (attended @ w[f"{own}self_attn.o_proj.weight"].T)
            n, gate = self._adapted(h, f"{own}post_attention_layernorm", condition)
            h = h + gate * self._mlp(own, n, gelu=False)
        return self._adapted(h, "suffix.norm", condition)[0][sizes.lead :] @ w["action_out"].T

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(len(x), -1, self.shape.head_dim)

    def _qkv(self, own: str, x: Tensor, places: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = (self._heads(x @ self.weights[f"{own}self_attn.{name}_proj.weight"].T) for name in "qkv")
        return self._rotated(q, places), self._rotated(k, places), v

    def _rotated(self, x: Tensor, places: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        angles = places[:, None] * 10_000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
        cos, sin = angles.cos()[:, None], angles.sin()[:, None]
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, sees: Tensor) -> Tensor:
        k, v = (each.repeat_interleave(q.shape[1] // each.shape[1], dim=1) for each in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q, k) / math.sqrt(q.shape[-1])
        weights = scores.masked_fill(~sees, -torch.inf).softmax(-1)
        return torch.einsum("hqk,khd->qhd", weights, v).flatten(1)

    def _mlp(self, own: str, x: Tensor, gelu: bool) -> Tensor:
        gate, up = (x @ self.weights[f"{own}mlp.{name}_proj.weight"].T for name in ("gate", "up"))
        bent = F.gelu(gate, approximate="tanh") if gelu else F.silu(gate)
        return (bent * up) @ self.weights[f"{own}mlp.down_proj.weight"].T

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * self.weights.get(f"{name}.weight", 1.0)

    def _adapted(self, x: Tensor, name: str, condition: Tensor | None) -> tuple[Tensor, Tensor | float]:
        """The normed rows, and the gate of what follows."""
        if condition is None:
            return self._norm(x, name), 1.0
        numbers = condition @ self.weights[f"{name}.dense.weight"].T + self.weights[f"{name}.dense.bias"]
        scale, shift, gate = numbers.chunk(3, dim=-1)
        return self._norm(x, name) * (1 + scale) + shift, gate
