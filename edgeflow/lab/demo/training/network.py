"""The policy as one compact batched module; parameter names are those of the published checkpoint.

OpenVLA at a small scale: two vision towers side by side, a projector, a Llama. Written for training, and as
the plain reference for the serving model, so it caches nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BINS: Final = 256
PREFIX_TOKENS: Final = 5  # class token and four register tokens of the first tower
CHANNEL_MEANS: Final = ((0.485, 0.456, 0.406), (0.5, 0.5, 0.5))
CHANNEL_STDS: Final = ((0.229, 0.224, 0.225), (0.5, 0.5, 0.5))


@dataclass(frozen=True, slots=True, kw_only=True)
class TowerDimensions:
    """Dimensions of a tower."""

    img_size: int = 96
    patch_size: int = 16
    depth: int = 3
    """Blocks in the checkpoint; the last one and the final norm are never executed."""
    embed_dim: int = 96
    num_heads: int = 3
    mlp_ratio: float = 4.0

    @property
    def patches(self) -> int:
        return (self.img_size // self.patch_size) ** 2


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkSize:
    """Dimensions of the policy."""

    towers: tuple[TowerDimensions, TowerDimensions] = field(
        default_factory=lambda: (TowerDimensions(), TowerDimensions())
    )
    hidden: int = 128
    layers: int = 8
    heads: int = 4
    mlp: int = 352
    vocab: int = 576
    """Vocabulary size with `pad` rows of padding; action ids are the last BINS of vocab - pad."""
    pad: int = 64

    @property
    def text_vocab(self) -> int:
        """V, the number of real tokens; ids from V on are padding."""
        return self.vocab - self.pad


class Mlp(nn.Module):
    """approximate: of GELU, as in torch."""

    def __init__(self, width: int, inner: int, approximate: str = "none") -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(width, inner), nn.Linear(inner, width)
        self._approximate = approximate

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc2(F.gelu(self.fc1(x), approximate=self._approximate))
        return out


class TrainedVisionAttention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.qkv, self.proj, self.heads = nn.Linear(width, 3 * width), nn.Linear(width, width), heads

    def forward(self, x: Tensor) -> Tensor:
        b, n, e = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, e // self.heads).permute(2, 0, 3, 1, 4)
        out: Tensor = self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, e))
        return out


class LayerScale(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale_factor = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale_factor


class TrainedBlock(nn.Module):
    def __init__(self, size: TowerDimensions, scaled: bool) -> None:
        super().__init__()
        e = size.embed_dim
        self.norm1, self.norm2 = nn.LayerNorm(e, eps=1e-6), nn.LayerNorm(e, eps=1e-6)
        self.attn, self.mlp = TrainedVisionAttention(e, size.num_heads), Mlp(e, int(e * size.mlp_ratio))
        self.ls1: nn.Module = LayerScale(e) if scaled else nn.Identity()
        self.ls2: nn.Module = LayerScale(e) if scaled else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.ls1(self.attn(self.norm1(x)))
        out: Tensor = x + self.ls2(self.mlp(self.norm2(x)))
        return out


class PatchEmbed(nn.Module):
    def __init__(self, size: TowerDimensions) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, size.embed_dim, size.patch_size, size.patch_size)

    def forward(self, pixels: Tensor) -> Tensor:
        return embedded_patches(self.proj, pixels)


def embedded_patches(layer: nn.Conv2d, pixels: Tensor) -> Tensor:
    """`[B, 3, side, side]` to `[B, patches, E]`, row by row; a convolution written as a matrix product."""
    b, c, side, _ = pixels.shape
    p = layer.kernel_size[0]
    n = side // p
    patches = pixels.view(b, c, n, p, n, p).permute(0, 2, 4, 1, 3, 5).reshape(b, n * n, c * p * p)
    return F.linear(patches, layer.weight.flatten(1), layer.bias)


class Tower(nn.Module):
    """A vision tower; its output is the patch features of the last block but one, `[B, patches, E]`.

    with_prefix: DINOv2's form, with class and register tokens (no position added to them) and LayerScale.
    """

    def __init__(self, size: TowerDimensions, with_prefix: bool) -> None:
        super().__init__()
        e = size.embed_dim
        if with_prefix:
            self.cls_token = nn.Parameter(0.02 * torch.randn(1, 1, e))
            self.reg_token = nn.Parameter(0.02 * torch.randn(1, PREFIX_TOKENS - 1, e))
        self.with_prefix = with_prefix
        self.pos_embed = nn.Parameter(position_code(size.img_size // size.patch_size, size.embed_dim)[None])
        self.patch_embed = PatchEmbed(size)
        self.blocks = nn.ModuleList(TrainedBlock(size, with_prefix) for _ in range(size.depth - 1))

    def forward(self, pixels: Tensor) -> Tensor:
        x = self.patch_embed(pixels) + self.pos_embed
        if self.with_prefix:
            prefix = torch.cat([self.cls_token, self.reg_token], dim=1).expand(len(x), -1, -1)
            x = torch.cat([prefix.to(x.dtype), x], dim=1)
        for block in self.blocks:
            x = block(x)
        patches: Tensor = x[:, PREFIX_TOKENS:] if self.with_prefix else x
        return patches


def position_code(side: int, width: int, scale: float = 1.0) -> Tensor:
    """Sines and cosines of row and column at several wavelengths, `[side * side, width]`: the initial values."""
    places = torch.arange(side * side)
    angles = 2.0 ** torch.linspace(-3.0, 0.5, width // 4) * scale
    rows, columns = (places // side)[:, None] * angles, (places % side)[:, None] * angles
    return 0.3 * torch.cat([rows.sin(), rows.cos(), columns.sin(), columns.cos()], dim=1)


class VisionBackbone(nn.Module):
    def __init__(self, size: NetworkSize) -> None:
        super().__init__()
        self.featurizer = Tower(size.towers[0], with_prefix=True)
        self.fused_featurizer = Tower(size.towers[1], with_prefix=False)

    def forward(self, pixels: Tensor) -> Tensor:
        """`[B, 6, side, side]` to `[B, patches, E0 + E1]`."""
        return torch.cat([self.featurizer(pixels[:, :3]), self.fused_featurizer(pixels[:, 3:])], dim=2)


class Projector(nn.Module):
    def __init__(self, vision: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(vision, 4 * vision)
        self.fc2 = nn.Linear(4 * vision, hidden)
        self.fc3 = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc3(F.gelu(self.fc2(F.gelu(self.fc1(x)))))
        return out


class RmsNorm(nn.Module):
    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight, self._eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), self.weight.shape, self.weight, self._eps)


class SelfAttention(nn.Module):
    def __init__(self, size: NetworkSize) -> None:
        super().__init__()
        e, self.heads = size.hidden, size.heads
        self.q_proj, self.k_proj = nn.Linear(e, e, bias=False), nn.Linear(e, e, bias=False)
        self.v_proj, self.o_proj = nn.Linear(e, e, bias=False), nn.Linear(e, e, bias=False)

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        b, n, e = x.shape
        q, k, v = self.heads_of(x, turn)
        scores = q @ k.transpose(2, 3) * (e // self.heads) ** -0.5
        mixed = (scores + mask).softmax(dim=-1).to(v.dtype) @ v
        out: Tensor = self.o_proj(mixed.transpose(1, 2).reshape(b, n, e))
        return out

    def heads_of(self, x: Tensor, turn: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys with their positions, and values, each `[B, H, L, D]`."""
        b, n, e = x.shape
        weight = torch.cat([self.q_proj.weight, self.k_proj.weight, self.v_proj.weight])
        q, k, v = F.linear(x, weight).view(b, n, 3, self.heads, e // self.heads).permute(2, 0, 3, 1, 4)
        return turned(q, turn), turned(k, turn), v


def turned(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """Apply RoPE in half-split order: x `[B, H, L, D]`, cos and sin `[L, D]`, or as x."""
    low, high = x.chunk(2, dim=-1)
    return x * turn[0].to(x.dtype) + torch.cat([-high, low], dim=-1) * turn[1].to(x.dtype)


class GatedMlp(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = F.linear(x, torch.cat([self.gate_proj.weight, self.up_proj.weight])).chunk(2, dim=-1)
        out: Tensor = self.down_proj(F.silu(gate) * up)
        return out


class TrainedLayer(nn.Module):
    def __init__(self, size: NetworkSize) -> None:
        super().__init__()
        self.self_attn, self.mlp = SelfAttention(size), GatedMlp(size.hidden, size.mlp)
        self.input_layernorm, self.post_attention_layernorm = RmsNorm(size.hidden), RmsNorm(size.hidden)

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), turn, mask)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class TrainedDecoder(nn.Module):
    def __init__(self, size: NetworkSize) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(size.vocab, size.hidden)
        self.layers = nn.ModuleList(TrainedLayer(size) for _ in range(size.layers))
        self.norm = RmsNorm(size.hidden)


class TrainedLanguageModel(nn.Module):
    def __init__(self, size: NetworkSize) -> None:
        super().__init__()
        self.model = TrainedDecoder(size)
        self.lm_head = nn.Linear(size.hidden, size.vocab, bias=False)
        self._half_dim = size.hidden // size.heads // 2

    def forward(self, x: Tensor, positions: Tensor, mask: Tensor) -> list[Tensor]:
        """From embeddings `[B, L, E]`, positions `[L]` and mask `[L, L]` (0: may attend, -inf: may not), return the
        input of every layer, the last layer's output, and that output after the final norm, each `[B, L, E]`."""
        turn, states = self.turn(positions), [x]
        for layer in self.model.layers:
            states.append(layer(states[-1], turn, mask))
        return [*states, self.model.norm(states[-1])]

    def turn(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines of the RoPE angles, each `[L, D]`."""
        rates = 10000.0 ** (-torch.arange(self._half_dim, device=positions.device) / self._half_dim)
        angles = (positions[:, None] * rates).repeat(1, 2)
        return angles.cos(), angles.sin()


class PolicyNetwork(nn.Module):
    """Vision, projector and language model of the policy."""

    def __init__(self, size: NetworkSize) -> None:
        super().__init__()
        self.size = size
        self.vision_backbone = VisionBackbone(size)
        self.projector = Projector(sum(tower.embed_dim for tower in size.towers), size.hidden)
        self.language_model = TrainedLanguageModel(size)
        self._initialise()

    def _initialise(self) -> None:
        for name, parameter in self.language_model.named_parameters():
            if parameter.dim() == 2:
                narrow = name.endswith(("o_proj.weight", "down_proj.weight"))
                std = 0.02 if "embed" in name else parameter.shape[1] ** -0.5
                nn.init.normal_(parameter, std=std / (2 * self.size.layers) ** 0.5 if narrow else std)

    def image_tokens(self, frames: Tensor) -> Tensor:
        """RGB `[B, side, side, 3]` uint8 to `[B, patches, E]`."""
        out: Tensor = self.projector(self.vision_backbone(normalised(frames)))
        return out

    def forward_tokens(self, image_tokens: Tensor, ids: Tensor) -> Tensor:
        """Logits `[B, 1 + patches + T - 1, V + pad]` of ids `[B, T]`, which start with BOS. The image follows BOS; the
        mask is causal."""
        embedded = self.language_model.model.embed_tokens(ids)
        x = torch.cat([embedded[:, :1], image_tokens, embedded[:, 1:]], dim=1)
        n = x.shape[1]
        mask = torch.full((n, n), -torch.inf, device=x.device).triu(1)
        states = self.language_model(x, torch.arange(n, device=x.device), mask)
        out: Tensor = self.language_model.lm_head(states[-1])
        return out

    @torch.inference_mode()
    def predict(self, frames: Tensor, ids: Tensor, stages: int) -> Tensor:
        """Greedy action ids `[B, stages]`, without any cache."""
        image = self.image_tokens(frames)
        start = ids.shape[1]
        for _ in range(stages):
            best = self.forward_tokens(image, ids)[:, -1].argmax(dim=-1)
            ids = torch.cat([ids, best[:, None]], dim=1)
        return ids[:, start:]


def normalised(frames: Tensor) -> Tensor:
    """Normalise RGB uint8 `[B, side, side, 3]` to float `[B, 6, side, side]` with each tower's mean and deviation."""
    pixels = frames.permute(0, 3, 1, 2).float() / 255.0
    means = torch.tensor(CHANNEL_MEANS, device=frames.device).view(1, 6, 1, 1)
    stds = torch.tensor(CHANNEL_STDS, device=frames.device).view(1, 6, 1, 1)
    return (torch.cat([pixels, pixels], dim=1) - means) / stds
