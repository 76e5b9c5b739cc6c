"""The layers of the flow policy: vision tower, language model, and the expert that reads the language model's keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edgeflow.lab.demo.training.network import GatedMlp, Mlp, RmsNorm, embedded_patches, position_code, turned

_MLP_MULTIPLE: Final = 256  # the published rule for the width of the expert's MLP rounds up to a multiple of this


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowSize:
    """Dimensions of the policy, and its flow's schedule."""

    image: int = 96
    patch: int = 16
    vision_width: int = 192
    vision_layers: int = 3
    vision_heads: int = 6
    vision_mlp: int = 768
    scale_factor: int = 1
    """Patches per side of the square that becomes one image token."""
    width: int = 128
    layers: int = 8
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    mlp: int = 352
    vocab: int = 512
    expert_multiplier: float = 0.75
    chunk: int = 48
    """Rows per chunk, 50 ms each."""
    state: int = 32
    action: int = 8
    """Both: padded widths."""
    min_period: float = 4e-3
    max_period: float = 4.0

    @property
    def image_tokens(self) -> int:
        """Tokens of one image."""
        return (self.image // self.patch // self.scale_factor) ** 2

    @property
    def expert_width(self) -> int:
        return int(self.width * self.expert_multiplier)

    @property
    def expert_mlp(self) -> int:
        """8/3 of the width, rounded up, as the published code derives it."""
        return -(-int(2 * 4 * self.expert_width / 3) // _MLP_MULTIPLE) * _MLP_MULTIPLE


_EPS, TEXT_EPS = 1e-6, 1e-5  # of the tower's norms and of the language model's norms
_WAVELENGTH = 10_000.0  # the longest wavelength of the rotary positions
Turn = tuple[Tensor, Tensor]


class NamedModules(nn.Module):
    """Modules by their names in the checkpoint."""

    def __init__(self, **parts: nn.Module) -> None:
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


class FlowVisionAttention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.q_proj, self.k_proj = nn.Linear(width, width), nn.Linear(width, width)
        self.v_proj, self.out_proj = nn.Linear(width, width), nn.Linear(width, width)
        self._heads = heads

    def forward(self, x: Tensor) -> Tensor:
        b, n, e = x.shape
        three = (self.q_proj, self.k_proj, self.v_proj)
        weight, bias = torch.cat([each.weight for each in three]), torch.cat([each.bias for each in three])
        q, k, v = F.linear(x, weight, bias).view(b, n, 3, self._heads, e // self._heads).permute(2, 0, 3, 1, 4)
        mixed = attended(q, k, v)
        out: Tensor = self.out_proj(mixed.transpose(1, 2).reshape(b, n, e))
        return out


class VisionLayer(nn.Module):
    def __init__(self, size: FlowSize) -> None:
        super().__init__()
        e = size.vision_width
        self.layer_norm1, self.layer_norm2 = nn.LayerNorm(e, eps=_EPS), nn.LayerNorm(e, eps=_EPS)
        self.self_attn, self.mlp = FlowVisionAttention(e, size.vision_heads), Mlp(e, size.vision_mlp, "tanh")

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attn(self.layer_norm1(x))
        out: Tensor = x + self.mlp(self.layer_norm2(x))
        return out


class VisionEmbeddings(nn.Module):
    def __init__(self, size: FlowSize) -> None:
        super().__init__()
        side = size.image // size.patch
        self.patch_embedding = nn.Conv2d(3, size.vision_width, size.patch, size.patch)
        self.position_embedding = nn.Embedding(side**2, size.vision_width)
        self.position_embedding.weight.data.copy_(position_code(side, size.vision_width, 6.0 / side))

    def forward(self, pixels: Tensor) -> Tensor:
        return embedded_patches(self.patch_embedding, pixels) + self.position_embedding.weight


class VisionModel(nn.Module):
    def __init__(self, size: FlowSize) -> None:
        super().__init__()
        self.embeddings = VisionEmbeddings(size)
        self.encoder = NamedModules(layers=nn.ModuleList(VisionLayer(size) for _ in range(size.vision_layers)))
        self.post_layernorm = nn.LayerNorm(size.vision_width, eps=_EPS)

    def forward(self, pixels: Tensor) -> Tensor:
        x = self.embeddings(pixels)
        for layer in self.encoder.layers:
            x = layer(x)
        out: Tensor = self.post_layernorm(x)
        return out


def pixel_shuffle(patches: Tensor, scale: int) -> Tensor:
    """Join squares of `scale` by `scale` patches: `[B, side * side, E]` to `[B, (side / scale)^2, scale^2 * E]`."""
    b, n, e = patches.shape
    side = round(n**0.5)
    squares = patches.view(b, side // scale, scale, side // scale, scale, e).permute(0, 1, 3, 2, 4, 5)
    return squares.reshape(b, n // scale**2, scale**2 * e)


class FlowLayer(nn.Module):
    """A layer of the language model, or the base of an expert layer.

    keys: the width from which keys and values are projected.
    """

    def __init__(self, size: FlowSize, width: int, mlp: int, keys: int) -> None:
        super().__init__()
        inner, outer = size.heads * size.head_dim, size.kv_heads * size.head_dim
        self.self_attn = NamedModules(
            q_proj=nn.Linear(width, inner, bias=False),
            o_proj=nn.Linear(inner, width, bias=False),
            k_proj=nn.Linear(keys, outer, bias=False),
            v_proj=nn.Linear(keys, outer, bias=False),
        )
        self.mlp = GatedMlp(width, mlp)
        self.input_layernorm, self.post_attention_layernorm = RmsNorm(width, TEXT_EPS), RmsNorm(width, TEXT_EPS)
        self._heads, self._kv_heads = size.heads, size.kv_heads

    def heads_of(self, x: Tensor, turn: Turn) -> tuple[Tensor, Tensor, Tensor]:
        """Queries `[B, H, L, D]`, and keys and values `[B, G, L, D]`, of x `[B, L, E]`, with positions applied."""
        own, x = self.self_attn, self.input_layernorm(x)
        joint = F.linear(x, torch.cat([own.q_proj.weight, own.k_proj.weight, own.v_proj.weight]))
        heads = joint.view(*x.shape[:2], self._heads + 2 * self._kv_heads, -1).transpose(1, 2)
        q, k, v = torch.split(heads, [self._heads, self._kv_heads, self._kv_heads], dim=1)
        return turned(q, turn), turned(k, turn), v

    def finish(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        """The layer's output `[B, L, E]`.

        mask: broadcast to `[B, G, L, keys]`, 0 where a query may see, otherwise -inf. The queries of a group are rows
        of one product, since they share its keys.
        """
        b, _, n, d = q.shape
        grouped = q.reshape(b, self._kv_heads, -1, d)
        mixed = attended(grouped, k, v, mask.repeat(1, 1, self._heads // self._kv_heads, 1)).reshape(b, -1, n, d)
        x = x + self.self_attn.o_proj(mixed.transpose(1, 2).flatten(2))
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class ExpertLayer(FlowLayer):
    """A layer of the expert.

    crossing: its keys and values are projections of the language model's only; otherwise it has its own, next to the
    language model's.
    """

    def __init__(self, size: FlowSize, *, crossing: bool) -> None:
        keys = size.kv_heads * size.head_dim if crossing else size.expert_width
        super().__init__(size, size.expert_width, size.expert_mlp, keys)
        self.crossing = crossing

    def forward(self, x: Tensor, k: Tensor, v: Tensor, turn: Turn, mask: Tensor) -> Tensor:
        if not self.crossing:
            q, own_k, own_v = self.heads_of(x, turn)
            return self.finish(x, q, torch.cat([k, own_k], dim=2), torch.cat([v, own_v], dim=2), mask)
        own = self.self_attn
        q = own.q_proj(self.input_layernorm(x)).unflatten(2, (self._heads, -1)).transpose(1, 2)
        keys, values = self._projected(own.k_proj, k), self._projected(own.v_proj, v)
        return self.finish(x, turned(q, turn), keys, values, mask)

    def _projected(self, projection: nn.Module, heads: Tensor) -> Tensor:
        """Project all heads of a token `[B, G, P, D]` together."""
        out: Tensor = projection(heads.transpose(1, 2).flatten(2))
        return out.view(*out.shape[:2], self._kv_heads, -1).transpose(1, 2)


def attended(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """Attention `[..., L, D]` of queries `[..., L, D]` to keys and values `[..., K, D]`.

    Written out: for sequences this short the backward pass of torch's operator is several times slower.
    """
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)
    if mask is not None:
        scores = scores + mask
    out: Tensor = scores.softmax(dim=-1).to(v.dtype) @ v
    return out


def turn_of(positions: Tensor, head_dim: int) -> Turn:
    """Cosines and sines of the angles of positions `[B, L]`, each `[B, 1, L, D]`."""
    half = head_dim // 2
    rates = _WAVELENGTH ** (-torch.arange(half, device=positions.device) / half)
    angles = (positions[..., None] * rates).repeat(1, 1, 2)[:, None]
    return angles.cos(), angles.sin()
