"""Reads a flow checkpoint back into the plain network: the reference that the served policy is compared with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import load_file
from tokenizers import Tokenizer

from edgeflow.lab.demo.flow_training.batches import BatchNormaliser
from edgeflow.lab.demo.flow_training.chunks import Spread
from edgeflow.lab.demo.flow_training.layers import FlowSize
from edgeflow.lab.demo.flow_training.network import TrainedFlowNetwork
from tests.lab.demo.flow_training.sampling import FlowSampler

_STATISTICS = "policy_preprocessor_step_5_normalizer_processor.safetensors"


def read_sampler(folder: Path, steps: int | None = None, seed: int = 0) -> FlowSampler:
    """The policy of a folder written by `write_flow_checkpoint`; weights as shipped, computed in fp32.

    steps: None = those that its files state.
    """
    config = read_json(folder / "config.json")
    size, tokenizer = size_of(folder), Tokenizer.from_file(str(folder / "vlm" / "tokenizer.json"))
    return FlowSampler(
        read_network(folder),
        tokenizer,
        read_normaliser(folder, size),
        steps or config["num_steps"],
        seed=seed,
    )


def read_network(folder: Path) -> TrainedFlowNetwork:
    """Only the network, of this or any other checkpoint of the layout whose sizes `size_of` reads."""
    network = TrainedFlowNetwork(size_of(folder))
    saved = load_file(folder / "model.safetensors")
    network.load_state_dict({name: saved[f"model.{name}"].float() for name in network.state_dict()})
    return network.eval()


def size_of(folder: Path) -> FlowSize:
    """Sizes of the network, of its two config files."""
    config, vlm = read_json(folder / "config.json"), read_json(folder / "vlm" / "config.json")
    text, vision = vlm["text_config"], vlm["vision_config"]
    return FlowSize(
        image=config["resize_imgs_with_padding"][0],
        patch=vision["patch_size"],
        vision_width=vision["hidden_size"],
        vision_layers=vision["num_hidden_layers"],
        vision_heads=vision["num_attention_heads"],
        vision_mlp=vision["intermediate_size"],
        scale_factor=vlm["scale_factor"],
        width=text["hidden_size"],
        layers=config["num_vlm_layers"],
        heads=text["num_attention_heads"],
        kv_heads=text["num_key_value_heads"],
        head_dim=text["head_dim"],
        mlp=text["intermediate_size"],
        vocab=text["vocab_size"],
        expert_multiplier=config["expert_width_multiplier"],
        chunk=config["chunk_size"],
        state=config["max_state_dim"],
        action=config["max_action_dim"],
    )


def read_normaliser(folder: Path, size: FlowSize) -> BatchNormaliser:
    saved = load_file(folder / _STATISTICS)
    state, action = (
        Spread(*(saved[f"{name}.{each}"].double().numpy() for each in ("mean", "std")))
        for name in ("observation.state", "action")
    )
    return BatchNormaliser(size, state, action)


def read_json(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def flat(pose) -> np.ndarray:
    """Position and quaternion of a pose, `[7]`."""
    return np.concatenate([pose.position, pose.wxyz])
