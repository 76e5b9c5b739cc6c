"""The pipelines around an ACT network. Torch-free."""

from __future__ import annotations

from pathlib import Path

from edgeflow.policies.act.config import ACTConfig
from edgeflow.policies.lerobot.processors import (
    BATCH,
    DEVICE,
    NORMALISE,
    POSTPROCESSOR,
    PREPROCESSOR,
    RENAME,
    UNNORMALISE,
    Normalisation,
    read_normalisation,
    read_pipeline,
)

BEFORE, AFTER = (RENAME, BATCH, DEVICE, NORMALISE), (UNNORMALISE, DEVICE)
"""The steps that are served."""


def load_processors(directory: Path, config: ACTConfig) -> Normalisation:
    """Read and check both pipelines and their statistics; CheckpointError names the step or statistic at fault."""
    before = read_pipeline(directory, PREPROCESSOR, BEFORE)
    after = read_pipeline(directory, POSTPROCESSOR, AFTER)
    shapes: dict[str, tuple[int, ...]] = {camera.name: (3, 1, 1) for camera in config.cameras}
    shapes |= {name: (size,) for name, size in config.vectors.items()}
    return read_normalisation(directory, before, after, shapes, config.action)
