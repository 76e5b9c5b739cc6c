"""Bundles of quantised models: AutoAWQ's own numbers, and what is found when a weight or an output is another."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from edgeflow.lab.verify.chat import verify_chat
from tests.oracles import oracle

BUNDLES = ["awq-tiny", "awq-chat-g64", "awq-stories-g64"]


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.oracle(name)) for name in BUNDLES])
def test_autoawq_agrees(name: str):
    torch.set_num_threads(1)
    results = verify_chat(oracle(name))
    assert [each for each in results if not each[1].ok] == []
    quantities = {(mode, result.quantity) for mode, result in results}
    assert {("alone", "greedy tokens"), ("packed", "greedy tokens"), ("as served", "mean logit error")} <= quantities
    if name == "awq-tiny":
        assert {("projections", "dequantised weight"), ("projections", "output"), ("prompt", "logits")} <= quantities
    else:
        assert ("prompt", "logits of prompt and answer") in quantities


@pytest.mark.oracle("awq-tiny")
def test_a_changed_code_is_found(tmp_path: Path):
    bundle = Path(shutil.copytree(oracle("awq-tiny"), tmp_path / "bundle", copy_function=shutil.copyfile))
    bundle.chmod(0o755)
    weights = load_file(bundle / "model.safetensors")
    weights["model.layers.0.mlp.down_proj.qweight"][7, 3] ^= 1
    save_file(weights, bundle / "model.safetensors", {"format": "pt"})
    off = {(mode, result.quantity) for mode, result in verify_chat(bundle) if not result.ok}
    assert {("projections", "dequantised weight"), ("prompt", "logits")} <= off
