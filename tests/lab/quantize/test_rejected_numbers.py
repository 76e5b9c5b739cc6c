"""Numbers that do not fit into float16 are rejected by their published names, before any work is wasted."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from edgeflow.lab.quantize.files.quantised import check_block, check_outside
from edgeflow.lab.quantize.policy_run import Loss, quantize_policy
from edgeflow.lab.quantize.request import Request
from edgeflow.lab.quantize.run import quantize
from edgeflow.lab.quantize.search.block import DOWN, GATE, POST_NORM, UP
from edgeflow.lab.quantize.search.choices import BlockChoice, GroupChoice
from edgeflow.lab.quantize.search.decoder import DecoderTensors
from edgeflow.lab.quantize.search.scales import ScaleForm
from edgeflow.models.checkpoint import Weights
from edgeflow_client.errors import CheckpointError
from tests.lab.quantize.cases import CONFIGS, CPU, random_decoder, random_tensors
from tests.lab.quantize.checkpoints import write_source
from tests.lab.quantize.policies.cases import checkpoint

GROUP = 32


def spoil(folder: Path, name: str, number: float) -> None:
    """Put a number into a tensor of a checkpoint."""
    tensors = load_file(folder / "model.safetensors")
    tensors[name].view(-1)[5] = number
    save_file(tensors, folder / "model.safetensors")


def request(folder: Path, calibration: str) -> Request:
    return Request(
        folder=folder,
        out=folder.parent / "out",
        group=None,
        form=ScaleForm.X,
        identity=False,
        clip=False,
        calibration=calibration,
        seed=0,
    )


@pytest.mark.parametrize(
    ("name", "number", "found"),
    [
        ("model.embed_tokens.weight", -131072.0, "1.311e+05"),
        ("model.norm.weight", math.nan, "nan"),
        ("lm_head.weight", math.inf, "inf"),
    ],
)
def test_numbers_outside_the_blocks_are_rejected_before_the_calibration(
    name: str, number: float, found: str, tmp_path: Path
):
    folder = write_source(tmp_path / "floats")
    spoil(folder, name, number)
    with pytest.raises(CheckpointError) as refused:
        quantize(request(folder, "absent.txt"), lambda *_: None, questions=1, macros=False)
    assert str(refused.value) == f"{name}: expected numbers that float16 holds (up to 65504), found {found}"
    assert not (tmp_path / "out").exists()


def test_the_embedding_is_named_first_of_several_outside_the_blocks():
    tensors = random_tensors(CONFIGS["llama"])
    for name in ("lm_head.weight", "model.norm.weight", "model.embed_tokens.weight"):
        tensors[name].view(-1)[5] = math.inf
        weights = Weights.of(tensors, torch.float32, CPU)
        with pytest.raises(CheckpointError, match=f"^{name}: "):
            check_outside(DecoderTensors.of(weights, CONFIGS["llama"], stem="model.", inner=96))


@pytest.mark.parametrize("name", ["mlp.up_proj.weight", "post_attention_layernorm.weight"])
def test_numbers_in_a_block_are_rejected_before_its_search(name: str, tmp_path: Path):
    """A search with such a weight would fail with the scales, or have losses that are not numbers."""
    folder, text = write_source(tmp_path / "floats"), tmp_path / "text.txt"
    spoil(folder, f"model.layers.1.{name}", 131072.0)
    text.write_text("\n\n".join(f"The robot {number} fetches a cup. " * 12 for number in range(40)))
    with pytest.raises(CheckpointError) as refused:
        quantize(request(folder, str(text)), lambda *_: None, questions=1, macros=False)
    assert str(refused.value) == (
        f"model.layers.1.{name}: expected numbers that float16 holds (up to 65504), found 1.311e+05"
    )
    kept = {path.name for path in (tmp_path / "out").rglob("*")}
    assert kept == {".quantize", "settings.json", "block-0000.safetensors"}


def test_numbers_of_a_policy_are_rejected_before_frames_are_read(tmp_path: Path):
    folder = checkpoint("openvla", tmp_path / "source")
    spoil(folder, "language_model.model.norm.weight", math.inf)
    with pytest.raises(CheckpointError, match=r"^language_model\.model\.norm\.weight: expected .* found inf"):
        quantize_policy(request(folder, "absent"), lambda *_: None, loss=Loss.ALL)
    assert not (tmp_path / "out").exists()


def test_a_weight_that_its_scales_make_too_large_is_rejected():
    block = random_decoder(CONFIGS["llama"]).block(0)
    scales = torch.full((64,), 2.0)
    group = GroupChoice(previous=POST_NORM, scaled=(GATE, UP), ratio=0.5, scales=scales, losses=torch.zeros(20))
    large = replace(block, tensors={**block.tensors, f"{UP}.weight": torch.full((96, 64), 4e4)})
    check_block(large, BlockChoice(), GROUP, "model.layers.0.")
    message = r"^model\.layers\.0\.mlp\.up_proj\.weight with the scales of the search: .* found 8e\+04"
    with pytest.raises(CheckpointError, match=message):
        check_block(large, BlockChoice((group,)), GROUP, "model.layers.0.")


def test_weights_whose_difference_float16_cannot_hold_are_rejected():
    """Each of them fits, but the scale of their group would be infinite."""
    block = random_decoder(CONFIGS["llama"]).block(0)
    weight = block.weight(DOWN).clone()
    weight[3, 40], weight[3, 41] = 6e4, -6e4
    wide = block.with_tensors({f"{DOWN}.weight": weight})
    with pytest.raises(CheckpointError, match=r"^model\.layers\.0\.mlp\.down_proj\.weight: .* 65504 .* found 120000"):
        check_block(wide, BlockChoice(), GROUP, "model.layers.0.")
