"""OpenVLA's policy straight from a directory, and the rows of prompts on the host: for proofs and measurements."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from edgeflow.kernels.kv.layout import on_device
from edgeflow.models.checkpoint import Weights
from edgeflow.policies.openvla.config import load_config
from edgeflow.policies.openvla.policy import OpenVLAPolicy
from edgeflow.policies.openvla.tokens import Prompter


def load_openvla(
    path: Path, dtype: torch.dtype, device: torch.device, *, center_crop: bool = False, **options: Any
) -> OpenVLAPolicy:
    """The policy of a checkpoint directory; CheckpointError says what is wrong with it. options: as in its class."""
    config = load_config(path, center_crop=center_crop)
    prompter = Prompter(path, vicuna=config.vicuna_prompt)
    return OpenVLAPolicy(config, Weights(path, dtype, device), prompter, **options)


def embed_prefill(policy: OpenVLAPolicy, pixel_values: Tensor, ids: Sequence[Sequence[int]]) -> list[Tensor]:
    """`OpenVLAPolicy.embed_rows` for prompts on the host."""
    return policy.embed_rows(pixel_values, [on_device(prompt, policy.device) for prompt in ids])
