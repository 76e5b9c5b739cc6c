"""`policy.vision`: the precision of the vision tower and its projector."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from edgeflow.engine.policy import LoadOptions, Placement
from edgeflow.kernels.table.operator_table import built_in_table
from edgeflow.lab.gpu.subjects.random_flow import TINY
from edgeflow.models.siglip import SigLIPTower, products_in_tf32
from edgeflow.policies.pi.config import FLOAT32, MODEL, TF32
from edgeflow.policies.pi.network import precision_on
from edgeflow.policies.registry import family_of
from edgeflow_client.errors import ConfigError
from tests.policies.flow.tiny import write_checkpoint
from tests.policies.flow.tiny_policies import RATE, loaded, observation
from tests.policies.flow.weights import Tiny

SHAPE = next(each for each in TINY if each.name == "π0.5")
CPU, BFLOAT16 = torch.device("cpu"), torch.bfloat16


def in_tf32() -> bool:
    """True where products of float32 on a GPU are in TF32 now."""
    matmul = torch.backends.cuda.matmul
    return matmul.fp32_precision == "tf32" if hasattr(matmul, "fp32_precision") else matmul.allow_tf32


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """`in_tf32` within each call of a tower."""
    found: list[bool] = []
    forward = SigLIPTower.forward

    def noting(tower: SigLIPTower, pixels: Tensor) -> Tensor:
        found.append(in_tf32())
        return forward(tower, pixels)

    monkeypatch.setattr(SigLIPTower, "forward", noting)
    return found


def images(precision: str | None, dtype: torch.dtype = BFLOAT16) -> Tensor:
    """The rows of images before they enter a prefix."""
    shape = replace(SHAPE, config=replace(SHAPE.config, precision=precision))
    network = shape.network(Placement(dtype=dtype, device=CPU, table=built_in_table()))
    return network.prefix.images(torch.rand(2, 3, 28, 28, generator=torch.Generator().manual_seed(0)))


@pytest.mark.parametrize("precision", [FLOAT32, TF32, MODEL])
def test_tf32_is_for_the_tower_alone(precision: str, noted: list[bool]):
    images(precision)
    assert noted == [precision == TF32]
    assert not in_tf32()


def test_tf32_ends_with_an_error():
    with pytest.raises(ZeroDivisionError), products_in_tf32():
        assert in_tf32()
        raise ZeroDivisionError
    assert not in_tf32()


def test_the_default_is_tf32_on_a_gpu():
    assert (precision_on("cuda", None), precision_on("cpu", None)) == (TF32, FLOAT32)
    assert (precision_on("cuda", FLOAT32), precision_on("cpu", MODEL)) == (FLOAT32, MODEL)


def test_the_model_s_precision_keeps_the_embeddings():
    """Rounded products are not far off; the embeddings of an image in float32 are rounded once."""
    exact, rough = images(FLOAT32), images(MODEL)
    assert (exact.dtype, rough.dtype) == (torch.float32, BFLOAT16)
    assert 1e-4 < (rough - exact).norm() / exact.norm() < 0.02
    assert torch.equal(images(MODEL, torch.float32), images(FLOAT32, torch.float32))


@pytest.mark.parametrize("vision", [None, FLOAT32, TF32, MODEL])
def test_a_service_follows_its_configuration(tmp_path: Path, noted: list[bool], vision: str | None):
    policy = loaded(
        write_checkpoint(tmp_path, Tiny(kind="pi0")), BFLOAT16, **({} if vision is None else {"vision": vision})
    )
    frame = policy.prepare(observation(1))
    network: Any = policy.network
    network.embed_prefix([frame.pixel_values], [torch.tensor(frame.prompt_ids)], frame.state[None])
    assert noted == [vision == TF32]
    assert network.prefix.images(frame.pixel_values).dtype == (BFLOAT16 if vision == MODEL else torch.float32)


def test_the_footprint_knows_the_precision(tmp_path: Path):
    directory = write_checkpoint(tmp_path, Tiny(kind="pi0"))
    tower = {
        name: each.numel()
        for name, each in load_file(directory / "model.safetensors").items()
        if "vision_tower" in name or "multi_modal_projector" in name
    }
    kept = sum(count for name, count in tower.items() if ".embeddings." in name)

    def numbers(vision: str) -> int:
        published = family_of(directory).load(directory, {**RATE, "vision": vision}, LoadOptions())
        return published.footprint(BFLOAT16).other

    assert numbers(TF32) == numbers(FLOAT32)
    assert numbers(FLOAT32) - numbers(MODEL) == sum(tower.values()) - kept > 0


def test_other_families_have_no_such_setting(tmp_path: Path):
    directory = write_checkpoint(tmp_path, Tiny(kind="smolvla"))
    with pytest.raises(ConfigError, match=r"policy.vision: this family, smolvla, has no such setting"):
        family_of(directory).check(directory, {**RATE, "vision": TF32})
