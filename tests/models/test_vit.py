"""Vision towers against the architecture written out: convolution, one head at a time, LayerScale as a product."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from edgeflow.models.checkpoint import Weights
from edgeflow.models.vit import VisionTower
from edgeflow_client.errors import CheckpointError

CPU = torch.device("cpu")
WIDTH, INNER, HEADS, PATCH, SIDE, DEPTH = 24, 40, 3, 4, 12, 2


def random_weights(*, registers: bool, scale: str | None) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    shapes = {"patch_embed.proj.weight": (WIDTH, 3, PATCH, PATCH), "patch_embed.proj.bias": (WIDTH,)}
    shapes["pos_embed"] = (1, (SIDE // PATCH) ** 2, WIDTH)
    if registers:
        shapes |= {"cls_token": (1, 1, WIDTH), "reg_token": (1, 4, WIDTH)}
    linears = {"attn.qkv": (3 * WIDTH, WIDTH), "attn.proj": (WIDTH, WIDTH)}
    linears |= {"mlp.fc1": (INNER, WIDTH), "mlp.fc2": (WIDTH, INNER), "norm1": (WIDTH,), "norm2": (WIDTH,)}
    for block in range(DEPTH):
        for name, shape in linears.items():
            shapes |= {f"blocks.{block}.{name}.weight": shape, f"blocks.{block}.{name}.bias": shape[:1]}
        if scale:
            shapes |= {f"blocks.{block}.{ls}.{scale}": (WIDTH,) for ls in ("ls1", "ls2")}
    return {name: 0.4 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def written_out(weights: dict[str, Tensor], pixels: Tensor) -> Tensor:
    """[B, 3, SIDE, SIDE] → [B, patches, WIDTH]"""
    patches = F.conv2d(pixels, weights["patch_embed.proj.weight"], weights["patch_embed.proj.bias"], stride=PATCH)
    x = patches.flatten(2).transpose(1, 2) + weights["pos_embed"]
    prefix = [weights[name].expand(len(x), -1, -1) for name in ("cls_token", "reg_token") if name in weights]
    x = torch.cat([*prefix, x], dim=1)
    for block in range(DEPTH):
        mine = {name.removeprefix(f"blocks.{block}."): value for name, value in weights.items()}
        x = x + _scaled(mine, "ls1", _attention(mine, _norm(mine, "norm1", x)))
        hidden = F.gelu(F.linear(_norm(mine, "norm2", x), mine["mlp.fc1.weight"], mine["mlp.fc1.bias"]))
        x = x + _scaled(mine, "ls2", F.linear(hidden, mine["mlp.fc2.weight"], mine["mlp.fc2.bias"]))
    return x[:, 5 if prefix else 0 :]


def _attention(mine: dict[str, Tensor], x: Tensor) -> Tensor:
    q, k, v = F.linear(x, mine["attn.qkv.weight"], mine["attn.qkv.bias"]).chunk(3, dim=-1)
    size = WIDTH // HEADS
    heads = []
    for head in range(HEADS):
        part = slice(head * size, head * size + size)
        scores = q[..., part] @ k[..., part].transpose(1, 2) / size**0.5
        heads.append(scores.softmax(-1) @ v[..., part])
    return F.linear(torch.cat(heads, dim=-1), mine["attn.proj.weight"], mine["attn.proj.bias"])


def _norm(mine: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return (
        centred / (centred.square().mean(-1, keepdim=True) + 1e-6).sqrt() * mine[f"{name}.weight"]
        + mine[f"{name}.bias"]
    )


def _scaled(mine: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    factor = mine.get(f"{name}.gamma", mine.get(f"{name}.scale_factor"))
    return x if factor is None else x * factor


def tower(weights: dict[str, Tensor], **changes: int) -> VisionTower:
    sizes = {"heads": HEADS, "blocks": DEPTH, "image_side": SIDE, **changes}
    return VisionTower(Weights.of(weights, torch.float32, CPU), **sizes)


@pytest.mark.parametrize("scale", [None, "gamma", "scale_factor"])
@pytest.mark.parametrize("registers", [False, True])
def test_features_equal_the_written_out_network(registers: bool, scale: str | None):
    weights = random_weights(registers=registers, scale=scale)
    pixels = torch.randn(2, 3, SIDE, SIDE)
    torch.testing.assert_close(tower(weights).forward(pixels), written_out(weights, pixels), atol=2e-5, rtol=1e-5)


def test_sizes_are_those_of_the_tensors():
    built = tower(random_weights(registers=True, scale="gamma"))
    assert (built.width, built.patches) == (WIDTH, 9)


def test_pixels_beyond_the_last_whole_patch_are_left_out():
    weights = random_weights(registers=True, scale="gamma")
    pixels = torch.randn(1, 3, SIDE + 3, SIDE + 3)
    found = tower(weights, image_side=SIDE + 3).forward(pixels)
    assert torch.equal(found, tower(weights).forward(pixels[..., :SIDE, :SIDE]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": 5}, "5 heads do not divide"),
        ({"image_side": 3}, "3 is less than the patch of 4"),
        ({"image_side": 16}, r"pos_embed has shape \[1, 9, 24\], expected \[1, 16, 24\]"),
        ({"blocks": 3}, r"blocks\.2\.mlp\.fc1\.bias is missing"),
    ],
)
def test_a_tower_that_does_not_fit_is_reported(changes: dict[str, int], message: str):
    with pytest.raises(CheckpointError, match=message):
        tower(random_weights(registers=False, scale=None), **changes)
