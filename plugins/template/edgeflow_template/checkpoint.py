"""Writes a checkpoint with random weights: python -m edgeflow_template.checkpoint FOLDER"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import torch
from edgeflow_template.family import TemplateConfig
from edgeflow_template.network import TemplateNetwork
from safetensors.torch import save_file

SMALL = TemplateConfig(joints=2, side=96, width=16, horizon=8, rate_hz=10.0)


def write_checkpoint(directory: Path, config: TemplateConfig = SMALL) -> Path:
    """Write config.json and model.safetensors to a folder, which is made; its path."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps({"type": "template", **asdict(config)}))
    torch.manual_seed(0)
    save_file(TemplateNetwork(config).state_dict(), directory / "model.safetensors")
    return directory


if __name__ == "__main__":
    write_checkpoint(Path(sys.argv[1]))
