"""LeRobot's SmolVLA policy and processors from a local folder, for scripts that run in LeRobot's own environment."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from lerobot.configs.policies import PreTrainedConfig
from lerobot.policies.smolvla import smolvlm_with_expert
from lerobot.policies.smolvla.modeling_smolvla import SmolVLAPolicy

IMAGE_TOKENS = SimpleNamespace(fake_image_token_id=0, global_image_token_id=0)


def load_config(folder: Path) -> PreTrainedConfig:
    """The configuration, with `vlm_model_name` made absolute: LeRobot reads it beside the working directory."""
    config = PreTrainedConfig.from_pretrained(folder)
    config.vlm_model_name = str((folder / config.vlm_model_name).resolve())
    config.device = "cpu"
    return config


def load_policy(folder: Path) -> SmolVLAPolicy:
    """The policy in evaluation mode, in the types of its parameters as LeRobot leaves them.

    The policy asks the model's image processor for two token ids, which it uses only with `add_image_special_tokens`;
    a folder without image processor files gets a stand-in for it.
    """
    stand_in = SimpleNamespace(from_pretrained=lambda _: SimpleNamespace(tokenizer=IMAGE_TOKENS))
    smolvlm_with_expert.AutoProcessor = stand_in
    return SmolVLAPolicy.from_pretrained(folder, config=load_config(folder)).eval()
