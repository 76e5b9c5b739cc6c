"""Random chat models whose greedy answers change with every token before; others soon repeat one token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from edgeflow.models.chat import ChatModel, load_chat_model
from tests.chat_checkpoint import write_chat_checkpoint

COMMON = 8


def write_talkative(directory: Path, family: str, **config: Any) -> None:
    """A checkpoint whose head does not read what the hidden states of random texts have in common."""
    model = write_chat_checkpoint(directory, family, **config)
    ids = torch.randint(0, 256, (24, 30), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        hidden = model(input_ids=ids, output_hidden_states=True).hidden_states[-1].flatten(0, 1)
        common = torch.linalg.svd(hidden, full_matrices=False).Vh[:COMMON]
        weight = model.lm_head.weight
        weight -= weight @ common.T @ common
        weight *= 3 / weight.norm(dim=1, keepdim=True)
    model.save_pretrained(directory)


def varied_model(directory: Path, family: str, dtype: torch.dtype = torch.float32, **config: Any) -> ChatModel:
    """A model with such a checkpoint."""
    torch.set_num_threads(1)
    write_talkative(directory, family, **config)
    return load_chat_model(directory, dtype, torch.device("cpu"))
