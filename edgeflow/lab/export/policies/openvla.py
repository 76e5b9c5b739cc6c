"""OpenVLA to export as static graphs, and the preprocessing that other engines need."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from edgeflow.lab.export.graphs.shapes import ExportShapes
from edgeflow.lab.export.graphs.stages import ModelProgram
from edgeflow.lab.export.graphs.static import static_table
from edgeflow.lab.export.graphs.tokens import TokenExport, token_program
from edgeflow.lab.openvla_policy import load_openvla
from edgeflow.policies.openvla.config import load_config
from edgeflow.policies.openvla.policy import OpenVLAPolicy
from edgeflow.policies.openvla.tokens import prompt_text

TEXT = 64
"""Default tokens of a prompt."""


def export_openvla(directory: Path, shapes: ExportShapes) -> ModelProgram:
    """All stages of a checkpoint; ConfigError for buckets that do not fit into its positions."""
    shapes.no_positions("openvla")
    policy = load_openvla(directory, torch.float32, torch.device("cpu"), table=static_table())
    most = policy.config.text.max_position_embeddings - policy.fixed_rows - policy.K
    text = shapes.texts(min(TEXT, most), most, f"the model has {policy.config.text.max_position_embeddings} positions")

    def embed(pixel_values: Tensor, ids: Tensor) -> Tensor:
        return policy.embed_rows(pixel_values, [ids[0]])[0][None]

    program = token_program(
        TokenExport(
            decoder=policy.decoder,
            embed=embed,
            images={"pixel_values": torch.zeros(1, *policy.pixel_shape)},
            fixed_rows=policy.fixed_rows,
            text=text,
            positions=policy.fixed_rows + text[-1] + policy.K,
            chunks=False,
            batches=shapes.batches or tuple(sorted({1, max(policy.K - 1, 1)})),
        )
    )
    return replace(program, preprocessing=_preprocessing(directory, policy))


def _preprocessing(directory: Path, policy: OpenVLAPolicy) -> dict[str, Any]:
    """The steps from observations to the inputs of the towers, and from tokens to actions."""
    config = load_config(directory)
    return {
        "image": asdict(config.image),
        "text": {
            "prompt": prompt_text("{instruction}", vicuna=config.vicuna_prompt),
            "tokenizer": "tokenizer.json",
            "rows": "BOS, image rows, the rest of the text",
        },
        "action": {
            "tokens": policy.K,
            "bins": config.n_action_bins,
            "last_id": config.action_vocab - 1,
            "statistics": {name: asdict(each) for name, each in config.statistics.items()},
        },
    }
