"""A chat model to export: its decoder, whose prompts run in chunks, each after the content of a slot."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from edgeflow.lab.export.graphs.shapes import ExportShapes
from edgeflow.lab.export.graphs.stages import ModelProgram
from edgeflow.lab.export.graphs.static import static_table
from edgeflow.lab.export.graphs.tokens import TokenExport, token_program
from edgeflow.models.chat import load_chat_model
from edgeflow.models.published import read_published
from edgeflow_client.errors import CheckpointError, ConfigError

CHAT_FAMILIES = ("llama", "qwen2", "qwen3")
CHUNK, POSITIONS = 64, 2048
"""Defaults."""


def chat_program(folder: Path, shapes: ExportShapes) -> ModelProgram:
    """All stages of a chat checkpoint; CheckpointError or ConfigError if it has no static graphs."""
    published = read_published(folder)
    if published.family not in CHAT_FAMILIES:
        raise CheckpointError(
            f"model: chat models of the family {published.family} are not exported; exported: "
            f"{', '.join(CHAT_FAMILIES)}"
        )
    most = published.text.max_position_embeddings
    positions = min(POSITIONS, most) if shapes.positions is None else shapes.positions
    if not 1 < positions <= most:
        raise ConfigError(f"positions: {positions}; the model has {most}: export 2 to {most}")
    text = shapes.texts(min(CHUNK, positions), positions, f"a slot has {positions} positions")
    decoder = load_chat_model(folder, torch.float32, torch.device("cpu"), text=False, table=static_table()).decoder

    def embed(ids: Tensor) -> Tensor:
        return decoder.embed(ids[0])[None]

    export = TokenExport(
        decoder=decoder,
        embed=embed,
        images={},
        fixed_rows=0,
        text=text,
        positions=positions,
        chunks=True,
        batches=shapes.batches or (1,),
    )
    return token_program(export)
