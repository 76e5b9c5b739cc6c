"""The model that `edgeflow ops` and `edgeflow tune` work on: its shape, and the dtype in which it is served."""

from __future__ import annotations

from pathlib import Path

import torch

from edgeflow.engine.chat.precision import choose_chat_dtype
from edgeflow.engine.placement import DTYPES, choose_dtype
from edgeflow.kernels.table.implementations import Hardware
from edgeflow.kernels.table.model_shape import ModelShape
from edgeflow.kernels.weights import FLOAT
from edgeflow.lab.trials.model_cases import PRESETS
from edgeflow.model_paths import EMBEDDED_CHAT, EMBEDDED_FLOW, EMBEDDED_MODEL, is_hub_id, resolve_model
from edgeflow.models.shape import checkpoint_shape, with_head
from edgeflow.models.vocabulary import HEADS
from edgeflow.policies.registry import detected
from edgeflow_client.errors import ConfigError

EMBEDDED = (EMBEDDED_MODEL, EMBEDDED_FLOW, EMBEDDED_CHAT)


def model_shape(model: str, rows: int, head: str = FLOAT) -> ModelShape:
    """The shape of a model: a checkpoint's directory, a hub id, an embedded model, or one of the presets.

    head: the format of a chat model's head. ConfigError for a policy with a head that is not in floats.
    """
    if head not in HEADS:
        raise ConfigError(f"head: must be {' or '.join(HEADS)}, got {head!r}")
    directory = _directory(model)
    if directory is None:
        shape = PRESETS[model]
        if head != FLOAT and shape.stages > 1:
            raise ConfigError(f"head: {head}: is for chat models, and {model} is the shape of a policy")
        return with_head(shape, head)
    policy = detected(directory)
    if policy is None:
        return checkpoint_shape(directory, rows, head)
    if head != FLOAT:
        raise ConfigError(f"head: {head}: is for chat models, and {model} is a policy of the family {policy.name}")
    return policy.shape(directory, rows)


def dtype_for(model: str, name: str, hardware: Hardware) -> torch.dtype:
    """The dtype of that name; without a name, the service's choice for the model on such a device."""
    if name:
        return dtype_named(name)
    device = torch.device(hardware.device_type)
    directory = _directory(model)
    if directory is None or detected(directory) is not None:
        return choose_dtype("auto", device)
    return choose_chat_dtype("auto", directory, device)


def dtype_named(name: str) -> torch.dtype:
    if name not in DTYPES:
        raise ConfigError(f"dtype {name!r}: one of {', '.join(DTYPES)}")
    return DTYPES[name]


def _directory(model: str) -> Path | None:
    """The directory of a model's files; None for a published shape, and ConfigError for an unknown name."""
    if model in EMBEDDED or Path(model).expanduser().is_dir() or is_hub_id(model):
        return resolve_model(model, chat=True)
    if model not in PRESETS:
        raise ConfigError(
            f"model {model!r} is not a directory or one of {', '.join((*PRESETS, *EMBEDDED))}, nor a hub id"
        )
    return None
