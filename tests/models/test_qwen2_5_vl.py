"""Qwen2.5-VL's images: sizes, patches, positions and windows against transformers' own."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from edgeflow.models.checkpoint import Weights
from edgeflow.models.prompt import mrope_positions
from edgeflow.models.qwen2_5_vl import ImagePreprocessor, ImageRules, Qwen2_5VisionTower, VisionConfig, resized_size
from edgeflow_client.errors import InvalidArgument
from tests.chat_checkpoint import PROCESSOR, VISION

pytest.importorskip("transformers", minversion="5.23", reason="names of its older versions differ")
CONFIG = VisionConfig.of({"vision_config": VISION, "image_token_id": 5})
RULES = ImageRules.of(PROCESSOR)
GREY_LEVELS = 5  # by which the Pillow preprocessor differs at most
sides = st.integers(1, 3000)


@given(height=sides, width=sides, least=st.integers(1, 200_000), more=st.integers(0, 1_000_000))
def test_sizes_equal_transformers(height: int, width: int, least: int, more: int):
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

    try:
        wanted = smart_resize(height, width, 28, least, least + more)
    except ValueError:
        with pytest.raises(InvalidArgument, match="longer than 200 times"):
            resized_size(height, width, 28, least, least + more)
        return
    assert resized_size(height, width, 28, least, least + more) == wanted


@pytest.mark.parametrize("size", [(56, 84), (60, 91), (31, 400), (900, 700)], ids=str)
def test_patches_equal_transformers(size: tuple[int, int]):
    """Its Pillow preprocessor, within its own distance from the torchvision one that is followed."""
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    y, x = np.mgrid[: size[0], : size[1]]
    image = np.stack([127 + 120 * np.sin(x / 9 + y / 15), 255 * x / size[1], 255 * y / size[0]], -1).astype(np.uint8)
    theirs = Qwen2VLImageProcessorPil(**PROCESSOR)(images=[image], return_tensors="pt")
    found = ImagePreprocessor(RULES, CONFIG)(image)
    assert (1, *found.grid) == tuple(theirs["image_grid_thw"][0].tolist())
    assert found.values.dtype == torch.float32 and found.values.shape == theirs["pixel_values"].shape
    exact = size[0] % 28 == 0 and size[1] % 28 == 0
    allowed = 1e-6 if exact else GREY_LEVELS / 255 / min(RULES.std)
    assert (found.values - theirs["pixel_values"]).abs().max() <= allowed
    rows = ImagePreprocessor(RULES, CONFIG).rows(*size)
    assert rows == math.prod(found.merged_grid) == len(found.values) // 4


@st.composite
def layouts(draw) -> tuple[int, list[tuple[int, tuple[int, int]]]]:
    """Images with text of any length between them."""
    row, images = 0, []
    for height, width in draw(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5)), max_size=4)):
        row += draw(st.integers(1, 4))
        images.append((row, (height, width)))
        row += height * width
    return row + draw(st.integers(1, 4)), images


@given(layouts())
def test_positions_equal_transformers(layout: tuple[int, list[tuple[int, tuple[int, int]]]]):
    from transformers import Qwen2_5_VLConfig
    from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLModel

    length, images = layout
    theirs = Qwen2_5_VLModel.__new__(Qwen2_5_VLModel)
    torch.nn.Module.__init__(theirs)
    theirs.config = Qwen2_5_VLConfig(vision_config=VISION)
    kinds = torch.zeros(1, length, dtype=torch.int)
    for start, (height, width) in images:
        kinds[0, start : start + height * width] = 1
    grids = torch.tensor([(1, 2 * height, 2 * width) for _, (height, width) in images] or [(1, 1, 1)])
    wanted, delta = theirs.get_rope_index(torch.ones_like(kinds, dtype=torch.long), kinds, grids)
    positions, shift = mrope_positions(length, images)
    assert torch.equal(positions, wanted[:, 0]) and shift == int(delta)


def their_tower(config: VisionConfig, full_blocks: list[int]):
    from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLVisionConfig
    from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VisionTransformerPretrainedModel

    settings = Qwen2_5_VLVisionConfig(**{**VISION, "fullatt_block_indexes": full_blocks})
    settings._attn_implementation = "eager"
    torch.manual_seed(2)
    tower = Qwen2_5_VisionTransformerPretrainedModel(settings).eval()
    with torch.no_grad():
        for parameter in tower.parameters():
            wide = parameter.dim() > 1
            parameter.normal_(0 if wide else 0.5, 1.5 * parameter[0].numel() ** -0.5 if wide else 0.3)
    ours = Qwen2_5VisionTower(
        Weights.of(tower.state_dict(), torch.float32, torch.device("cpu")),
        replace(config, full_blocks=tuple(full_blocks)),
    )
    return tower, ours


@pytest.mark.parametrize("full_blocks", [[], [1], [0, 1, 2]], ids=str)
@pytest.mark.parametrize("size", [(28, 28), (112, 112), (140, 112), (84, 336), (252, 168)], ids=str)
def test_the_tower_equals_transformers(size: tuple[int, int], full_blocks: list[int]):
    """One window and less, exactly one, several with smaller ones at the edges."""
    theirs, ours = their_tower(CONFIG, full_blocks)
    image = np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)
    patches = ImagePreprocessor(replace(RULES, min_pixels=1), CONFIG)(image)
    with torch.inference_mode():
        wanted = theirs(patches.values, torch.tensor([(1, *patches.grid)])).pooler_output
        found = ours.forward(patches)
    assert wanted.std() > 0.1 and found.shape == (math.prod(patches.merged_grid), CONFIG.out_hidden_size)
    assert (found - wanted).abs().max() <= 1e-4 * max(1.0, float(wanted.abs().max()) / 20)
