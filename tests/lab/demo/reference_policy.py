"""Reads a demo checkpoint back into the plain network: the reference that the served policy is compared with."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor

from edgeflow.lab.demo.training.actions import HIGH, LOW, NAMES, bin_centres
from edgeflow.lab.demo.training.network import BINS, NetworkSize, PolicyNetwork, TowerDimensions
from edgeflow.lab.demo.training.tokenizer import prompt_ids
from edgeflow.lab.demo.world.scene import Image
from edgeflow_client.errors import CheckpointError


class ReferencePolicy:
    """Images and instructions to actions by the plain network, in fp32, greedily."""

    def __init__(self, network: PolicyNetwork, tokenizer: Tokenizer) -> None:
        self.network, self.tokenizer = network.eval(), tokenizer

    def __call__(self, images: Sequence[Image], instructions: Sequence[str]) -> NDArray[np.float64]:
        """Actions `[N, 7]` in their units. Images `[96, 96, 3]`, RGB."""
        prompts = [prompt_ids(self.tokenizer, text) for text in instructions]
        actions = np.zeros((len(images), len(NAMES)))
        for length in {len(prompt) for prompt in prompts}:
            rows = [row for row, prompt in enumerate(prompts) if len(prompt) == length]
            frames = torch.from_numpy(np.stack([images[row] for row in rows]))
            ids = self.network.predict(frames, torch.tensor([prompts[row] for row in rows]), len(NAMES))
            actions[rows] = in_units(ids, self.network.size.text_vocab).numpy()
        return actions


def in_units(ids: Tensor, text_vocab: int) -> Tensor:
    """Actions in their units of token ids, as the centres of their bins."""
    low, high = torch.tensor(LOW), torch.tensor(HIGH)
    values = bin_centres()[(text_vocab - 1 - ids).clamp(0, BINS - 2)]
    return 0.5 * (values + 1.0) * (high - low) + low


def read_policy(folder: Path) -> ReferencePolicy:
    """The policy of a folder written by `write_checkpoint`; weights as shipped, computed in fp32."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    network = PolicyNetwork(_size(config))
    saved = load_file(folder / "model.safetensors")
    missing = network.state_dict().keys() - saved.keys()
    if missing:
        raise CheckpointError(f"{folder / 'model.safetensors'}: tensor {min(missing)} is missing")
    network.load_state_dict({name: saved[name].float() for name in network.state_dict()})
    return ReferencePolicy(network, Tokenizer.from_file(str(folder / "tokenizer.json")))


def _size(config: dict[str, Any]) -> NetworkSize:
    text = config["text_config"]
    first, second = (TowerDimensions(**kwargs) for kwargs in config["timm_model_kwargs"])
    return NetworkSize(
        towers=(first, second),
        hidden=text["hidden_size"],
        layers=text["num_hidden_layers"],
        heads=text["num_attention_heads"],
        mlp=text["intermediate_size"],
        vocab=text["vocab_size"],
        pad=config["pad_to_multiple_of"],
    )
