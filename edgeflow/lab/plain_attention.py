"""Checkpoints with plain attention, for readers that know no other kind."""

from __future__ import annotations

from pathlib import Path

from edgeflow.models.published import PublishedChat, read_published
from edgeflow_client.errors import CheckpointError


def read_with_heads(path: Path, reader: str) -> PublishedChat:
    """`read_published` for a reader that only knows keys and values of heads, rotated by plain cosines and sines;
    CheckpointError for latents and for YaRN.
    """
    published = read_published(path)
    if published.text.latent is not None:
        raise CheckpointError(
            f"{path}: {reader} is for models with keys and values of heads; a {published.family} attends over latents"
        )
    if published.text.rope.turn_factor != 1:
        raise CheckpointError(f"{path}: {reader} does not support rotary embeddings of type yarn")
    return published
