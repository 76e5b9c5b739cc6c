"""SmolVLA's processor files and images against what LeRobot made of them (data/README.md)."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from edgeflow.policies.flow.config import FlowProcessors
from edgeflow.policies.flow.observing import Margin, fitted
from edgeflow.policies.flow.policy import TaskTexts, TokenizedTexts
from edgeflow.policies.lerobot import STATE
from edgeflow.policies.smolvla.config import load_config, read_processors
from edgeflow_client.errors import CheckpointError
from tests.oracles import ORACLES

DATA = Path(__file__).parent / "data"
LISTED = json.loads((DATA / "cases.json").read_text())
TENSORS = load_file(DATA / "cases.safetensors")
SERVED = [case for case in LISTED["cases"] if case["processors"] != "no_statistics"]
BUNDLE = ORACLES / "smolvla-tiny"
pytestmark = pytest.mark.oracle("smolvla-tiny")


def processors_of(directory: Path, name: str) -> FlowProcessors:
    """A folder of processor files beside the bundle's checkpoint."""
    shutil.copytree(DATA / name, directory, dirs_exist_ok=True)
    shutil.copy(BUNDLE / "config.json", directory)
    shutil.copytree(BUNDLE / "vlm", directory / "vlm")
    return read_processors(directory, load_config(directory))


@pytest.mark.parametrize("case", SERVED, ids=lambda case: case["name"])
def test_states_texts_and_actions(tmp_path: Path, case: dict[str, Any]):
    processors, name = processors_of(tmp_path, case["processors"]), case["name"]
    normalisation = processors.normalisation
    assert normalisation.sources[STATE] == case["state_key"]
    affine = normalisation.inputs.get(STATE)
    for state, wanted in zip(TENSORS[f"{name}.state"].view(-1, 6), TENSORS[f"{name}.normalised_state"], strict=True):
        found = state.numpy() if affine is None else affine.normalised(state.numpy())
        np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)
    texts = TaskTexts(TokenizedTexts(processors.tokenizer, processors.tokens, 4096))
    tasks = case["task"] if isinstance(case["task"], list) else [case["task"]]
    for task, tokens, mask in zip(tasks, case["tokens"], case["mask"], strict=True):
        ids = texts.ids(task, np.empty(0, np.float32))
        assert list(ids) == [token for token, there in zip(tokens, mask, strict=True) if there]
    chunk, action = TENSORS[f"{name}.chunk"].double().numpy(), normalisation.action
    restored = chunk if action is None else action.restored(chunk)
    np.testing.assert_allclose(restored, TENSORS[f"{name}.actions"], rtol=1e-5, atol=1e-6)


def test_statistics_that_are_missing_are_rejected(tmp_path: Path):
    """LeRobot passes such values through, unnormalised."""
    with pytest.raises(CheckpointError, match=re.escape("has no statistics for observation.state")):
        processors_of(tmp_path, "no_statistics")


@pytest.mark.parametrize("case", LISTED["images"], ids=lambda case: case["name"])
def test_images(case: dict[str, Any]):
    width, height = case["resize_imgs_with_padding"]
    wanted = TENSORS[f"image.{case['name']}.out"]
    for camera, out in zip(case["cameras"], wanted, strict=False):
        levels = TENSORS[f"image.{case['name']}.{camera}"].float() / 255
        torch.testing.assert_close(fitted(levels, (height, width), Margin.LEFT_TOP), out, rtol=0, atol=1e-6)
    assert case["masks"] == [True] * len(case["cameras"]) + [False] * (len(wanted) - len(case["cameras"]))
