"""The chat model as one compact module for training; parameter names are those of published Qwen2 checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

EPS: Final = 1e-6
BLOCK: Final = 256  # rows of attention computed together
NOTE, MATCH, PASS = 0.2, 1.5, 0.3  # strengths of the hand-set heads


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatSize:
    """Dimensions of the model. The output head is tied to the embedding."""

    vocab: int = 1024
    hidden: int = 192
    mlp: int = 448
    layers: int = 4
    heads: int = 6
    theta: float = 1e6


class Norm(nn.Module):
    """RMS norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), EPS)


class Attention(nn.Module):
    """Causal attention with RoPE. x: `[B, L, E]`. turns: cosines and sines, each `[L, D]`."""

    def __init__(self, size: ChatSize) -> None:
        super().__init__()
        self.heads = size.heads
        self.q_proj = nn.Linear(size.hidden, size.hidden)
        self.k_proj = nn.Linear(size.hidden, size.hidden)
        self.v_proj = nn.Linear(size.hidden, size.hidden)
        self.o_proj = nn.Linear(size.hidden, size.hidden, bias=False)

    def forward(self, x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
        layers = (self.q_proj, self.k_proj, self.v_proj)
        q, k, v = (layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer in layers)
        mixed = causal_attention(_turned(q, turns), _turned(k, turns), v)
        out: Tensor = self.o_proj(mixed.transpose(1, 2).flatten(2))
        return out


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention of q, k, v, each `[B, H, L, D]`, a block of rows at a time over the columns up to its end.

    Written out because in bf16 on CPUs it is faster than the fused operator, above all its gradient.
    """
    q = (q * q.shape[-1] ** -0.5).to(v.dtype)
    k, length = k.to(v.dtype), q.shape[-2]
    mixed = []
    for first in range(0, length, BLOCK):
        last = min(length, first + BLOCK)
        above = torch.full((last - first, last), -torch.inf, dtype=q.dtype, device=q.device).triu(first + 1)
        scores = q[..., first:last, :] @ k[..., :last, :].transpose(-1, -2) + above
        mixed.append(scores.softmax(-1).to(v.dtype) @ v[..., :last, :])
    return torch.cat(mixed, dim=-2)


class MLP(nn.Module):
    """SwiGLU."""

    def __init__(self, size: ChatSize) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(size.hidden, size.mlp, bias=False)
        self.up_proj = nn.Linear(size.hidden, size.mlp, bias=False)
        self.down_proj = nn.Linear(size.mlp, size.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class ChatLayer(nn.Module):
    """Attention and MLP, each with a norm before it and a residual connection."""

    def __init__(self, size: ChatSize) -> None:
        super().__init__()
        self.input_layernorm = Norm(size.hidden)
        self.self_attn = Attention(size)
        self.post_attention_layernorm = Norm(size.hidden)
        self.mlp = MLP(size)

    def forward(self, x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), turns)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class ChatDecoder(nn.Module):
    """Embedding, layers, last norm."""

    def __init__(self, size: ChatSize) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(size.vocab, size.hidden)
        self.layers = nn.ModuleList(ChatLayer(size) for _ in range(size.layers))
        self.norm = Norm(size.hidden)


class ChatNetwork(nn.Module):
    """The chat model: ids `[B, L]` to hidden rows, hidden rows to logits."""

    def __init__(self, size: ChatSize) -> None:
        super().__init__()
        self.size = size
        self.model = ChatDecoder(size)
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif parameter.ndim == 2:
                deep = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(parameter, std=0.04 / (2 * size.layers) ** 0.5 if deep else 0.04)
        wire_copying(self)

    def hidden(self, ids: Tensor) -> Tensor:
        """Hidden rows `[B, L, E]`, after the last norm."""
        x = self.model.embed_tokens(ids)
        turns = rotary(ids.shape[1], self.size)
        for layer in self.model.layers:
            x = layer(x, turns)
        out: Tensor = self.model.norm(x)
        return out

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits `[..., V]`."""
        return F.linear(hidden, self.model.embed_tokens.weight)


def rotary(length: int, size: ChatSize) -> tuple[Tensor, Tensor]:
    """Cosines and sines of positions 0 .. length-1, each `[L, D]`, in half-split order."""
    angles = torch.outer(torch.arange(length).float(), rotary_rates(size)).repeat(1, 2)
    return angles.cos(), angles.sin()


def rotary_rates(size: ChatSize) -> Tensor:
    """Radians per position, `[D / 2]`."""
    width = size.hidden // size.heads
    return size.theta ** (-torch.arange(0, width, 2).float() / width)


def _turned(x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return (x * turns[0] + torch.cat((-second, first), dim=-1) * turns[1]).to(x.dtype)


@torch.no_grad()
def wire_copying(network: ChatNetwork) -> None:
    """Initialise heads that copy, because training takes long to find them.

    Head h of the first layer stores the token h rows back. Head h of the second attends to rows whose token h + 1 rows
    back equals this row's token h rows back, and outputs that row's token: together they continue a repetition.
    """
    first, second = (cast(ChatLayer, network.model.layers[index]).self_attn for index in (0, 1))
    embed, width = network.size.hidden, network.size.hidden // network.size.heads
    code = nn.init.orthogonal_(torch.empty(width, embed))
    notes = nn.init.orthogonal_(torch.empty(embed, embed)).view(-1, width, embed)
    slow = torch.arange(width) % (width // 2) >= width // 5  # pairs that rotate too little to blur a match
    fast = torch.where(torch.arange(width // 2) < width // 8, 1.0, 0.0)
    for head in range(network.size.heads - 1):
        rows = slice(head * width, (head + 1) * width)
        angles = -head * rotary_rates(network.size)
        first.q_proj.bias[rows] = 5.0 * torch.cat((angles.cos() * fast, angles.sin() * fast))
        first.k_proj.bias[rows] = 5.0 * torch.cat((fast, torch.zeros_like(fast)))
        first.q_proj.weight[rows] *= 0.2
        first.k_proj.weight[rows] *= 0.2
        first.v_proj.weight[rows] = code
        first.o_proj.weight[:, rows] = NOTE * notes[head].T
        second.q_proj.weight[rows] = MATCH * notes[head] * slow[:, None]
        second.k_proj.weight[rows] = MATCH * notes[head + 1] * slow[:, None]
        second.v_proj.weight[rows] = notes[0]
        second.o_proj.weight[:, rows] = PASS * code.T
