"""The shape of a checkpoint's decoder, as the operator table and its tuner see it."""

from __future__ import annotations

from pathlib import Path

from edgeflow.errors import ConfigError
from edgeflow.kernels.table.model_shape import ModelShape
from edgeflow.models.decoder_config import family_of
from edgeflow.models.quantization import Quantization
from edgeflow.text.checkpoint_json import read_json


def checkpoint_shape(directory: Path, rows: int) -> ModelShape:
    """Read the shape from `config.json`. rows: of the longest prefill. ConfigError where it has no decoder."""
    config = read_json(directory / "config.json")
    if "text_config" not in config and "hidden_size" not in config:
        raise ConfigError(
            f"{directory}: config.json has neither text_config nor hidden_size, so the model has no decoder whose "
            "operators are chosen"
        )
    decoder = config.get("text_config", config)
    if not isinstance(decoder, dict):
        raise ConfigError(f"{directory}: text_config in config.json must be an object")
    quantization = Quantization.of(config, f"{directory}: ")
    return ModelShape.of_config(
        decoder, rows, family=family_of(config), group=0 if quantization is None else quantization.group
    )
