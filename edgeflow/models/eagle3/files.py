"""The files of an EAGLE-3 head: config.json, and model.safetensors or pytorch_model.bin beside it.

Tensors have the names of the original implementation (midlayer.self_attn.q_proj.weight, d2t, ...). Those of vLLM
(layers.0.self_attn.q_proj.weight, draft_id_to_target_id) are read as these. A pytorch_model.bin is read by
models/weights_only.py, which maps its tensors.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from edgeflow.models.checkpoint import CONFIG_FILE, Weights, tensor_shapes
from edgeflow.models.weights_only import MOST_BYTES, read_state_dict
from edgeflow.text.checkpoint_json import read_json
from edgeflow.text.weight_files import INDEX_FILE, SINGLE_FILE
from edgeflow_client.errors import CheckpointError

BIN_FILE = "pytorch_model.bin"
LAYER = "midlayer."
OFFSETS = "d2t"
_RENAMED = {"layers.0.": LAYER, "draft_id_to_target_id": OFFSETS}
_UNREAD = ("t2d", f"{LAYER}self_attn.rotary_emb.inv_freq")
"""Tensors that follow from others."""
_INNER = "transformer_layer_config"


def head_entries(directory: Path) -> dict[str, Any]:
    """The entries of config.json. Those that the speculators format nests are lifted; CheckpointError if unreadable."""
    values = read_json(directory / CONFIG_FILE)
    inner = values.get(_INNER, {})
    if not isinstance(inner, dict):
        raise CheckpointError(f"{directory / CONFIG_FILE}: {_INNER} must be an object, got {inner!r}")
    return {name: value for name, value in {**values, **inner}.items() if value is not None}


def head_shapes(directory: Path) -> dict[str, tuple[int, ...]]:
    """Shapes of the tensors that are read, by their original names; headers alone are read.

    CheckpointError where the files are missing or broken, or where two tensors have one name.
    """
    if _has_safetensors(directory):
        stored = tensor_shapes(directory)
    else:
        stored = {name: tuple(each.shape) for name, each in _bin_tensors(directory).items()}
    shapes = {_original(name): shape for name, shape in stored.items()}
    if len(shapes) < len(stored):
        raise CheckpointError(f"{directory} holds a tensor twice, by its original name and by vLLM's: keep one of them")
    return {name: shape for name, shape in shapes.items() if name not in _UNREAD}


def head_weights(directory: Path, dtype: torch.dtype, device: torch.device) -> Weights:
    """The tensors by their original names; CheckpointError as of `head_shapes`."""
    if _has_safetensors(directory):
        weights = Weights(directory, dtype, device)
    else:
        weights = Weights.of(_bin_tensors(directory), dtype, device, where=f"{directory}: ")
    return weights.renamed(_RENAMED)


def _has_safetensors(directory: Path) -> bool:
    return any((directory / name).is_file() for name in (SINGLE_FILE, INDEX_FILE))


def _bin_tensors(directory: Path) -> dict[str, torch.Tensor]:
    path = directory / BIN_FILE
    if not path.is_file():
        raise CheckpointError(f"{directory} has neither {SINGLE_FILE} nor {BIN_FILE}: give the directory of a head")
    return read_state_dict(path, MOST_BYTES)


def _original(name: str) -> str:
    for other, original in _RENAMED.items():
        if name.startswith(other):
            return original + name.removeprefix(other)
    return name
