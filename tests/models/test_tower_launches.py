"""The vision tower on a GPU, without one: an image of a known size neither reads the device nor uploads indices."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from edgeflow.models.checkpoint import Weights
from edgeflow.models.qwen2_5_vl import MOST_GRIDS, Patches, Qwen2_5VisionTower, VisionConfig
from tests.chat_checkpoint import VISION
from tests.engine.host_waits import OnTheDevice

CONFIG = VisionConfig.of({"vision_config": VISION, "image_token_id": 5})
WIDTH, INNER, MERGED = CONFIG.hidden_size, CONFIG.intermediate_size, 4 * CONFIG.hidden_size


def shapes() -> dict[str, tuple[int, ...]]:
    linears = {"merger.mlp.0": (MERGED, MERGED), "merger.mlp.2": (CONFIG.out_hidden_size, MERGED)}
    found: dict[str, tuple[int, ...]] = {
        "patch_embed.proj.weight": (WIDTH, 3, 2, 14, 14),
        "merger.ln_q.weight": (WIDTH,),
    }
    for index in range(CONFIG.depth):
        block = f"blocks.{index}."
        found |= {f"{block}{norm}.weight": (WIDTH,) for norm in ("norm1", "norm2")}
        linears |= {f"{block}attn.qkv": (3 * WIDTH, WIDTH), f"{block}attn.proj": (WIDTH, WIDTH)}
        linears |= {f"{block}mlp.{name}_proj": (INNER, WIDTH) for name in ("gate", "up")}
        linears[f"{block}mlp.down_proj"] = (WIDTH, INNER)
    return (
        found
        | {f"{name}.weight": shape for name, shape in linears.items()}
        | {f"{name}.bias": shape[:1] for name, shape in linears.items()}
    )


def tower(device: str) -> Qwen2_5VisionTower:
    generator = torch.Generator().manual_seed(3)
    weights: Mapping[str, Tensor] = {
        name: torch.randn(shape, generator=generator) / shape[-1] ** 0.5 for name, shape in shapes().items()
    }
    return Qwen2_5VisionTower(Weights.of(weights, torch.float32, torch.device(device)), CONFIG)


def image(device: str, grid: tuple[int, int]) -> Patches:
    values = torch.randn(grid[0] * grid[1], CONFIG.patch_width, generator=torch.Generator().manual_seed(sum(grid)))
    return Patches(values.to(device), grid, (grid[0] // 2, grid[1] // 2))


@pytest.mark.parametrize("grid", [(8, 8), (18, 12), (10, 26)], ids=str)
def test_an_image_of_a_known_size_stays_on_the_device(grid: tuple[int, int]):
    """Windows at the edges are shorter: nothing reads their lengths back, in no block."""
    ours = tower("meta")
    with torch.inference_mode():
        patches = image("meta", grid)
        ours.forward(patches)
        with OnTheDevice() as seen:
            found = ours.forward(patches)
    assert found.shape == (grid[0] * grid[1] // 4, CONFIG.out_hidden_size)
    attentions = [name for name in seen.calls if "scaled_dot_product" in name]
    assert CONFIG.depth <= len(attentions) <= 4 * CONFIG.depth, "windows of one size are one batch"


def test_sizes_are_cached_and_the_cache_is_bounded():
    ours = tower("cpu")
    grids = [(2 + 2 * index, 12) for index in range(MOST_GRIDS + 3)]
    with torch.inference_mode():
        first = [ours.forward(image("cpu", grid)) for grid in grids]
        assert list(ours._grids) == grids[-MOST_GRIDS:]
        again = [ours.forward(image("cpu", grid)) for grid in grids]
    assert len(ours._grids) == MOST_GRIDS
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(first, again, strict=True))
