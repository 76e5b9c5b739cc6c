"""The inputs of one frame, in a file that both sides read: three cameras, state, a text's tokens, noise."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

from benchmarks.smolvla.random_smolvla import CAMERAS, CHUNK, HEIGHT, NUMBERS, PADDED, TOKENS, WIDTH

TASK = "put the red cube into the box on the left"


def write_inputs(path: Path, tokenizer: Path) -> Path:
    """Write the inputs. tokenizer: tokenizer.json. The state is normalised; tokens are padded to 48 and masked."""
    draws = torch.Generator().manual_seed(1)
    ids = Tokenizer.from_file(str(tokenizer)).encode(f"{TASK}\n").ids
    tokens, mask = torch.zeros(1, TOKENS, dtype=torch.int64), torch.zeros(1, TOKENS, dtype=torch.int64)
    tokens[0, : len(ids)], mask[0, : len(ids)] = torch.tensor(ids), 1
    pixels = {name: torch.randint(0, 256, (3, HEIGHT, WIDTH), generator=draws, dtype=torch.uint8) for name in CAMERAS}
    numbers = {
        "state": torch.randn((1, NUMBERS), generator=draws),
        "noise": torch.randn((1, CHUNK, PADDED), generator=draws),
    }
    save_file({**pixels, **numbers, "tokens": tokens, "mask": mask}, path)
    return path
