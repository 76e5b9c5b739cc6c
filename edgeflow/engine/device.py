"""The device and dtype of a model, and whether its passes are replayed, from the names in the configuration."""

from __future__ import annotations

import torch

from edgeflow_client.errors import ConfigError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def choose_device(name: str) -> torch.device:
    """The device of a name; `auto` takes CUDA if available. ConfigError when the named device is not available."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device: cuda is not available here; run `edgeflow doctor`, or use cpu")
    return torch.device(name)


def choose_graphs(name: str, device: torch.device, dtype: torch.dtype) -> bool:
    """True when passes are replayed as CUDA graphs; `auto`: on CUDA in half precision. `on` on a CPU: ConfigError."""
    if name == "on" and device.type != "cuda":
        raise ConfigError("graphs: on needs a CUDA device; run `edgeflow doctor`, or use auto")
    return name == "on" or (name == "auto" and device.type == "cuda" and dtype != torch.float32)


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """The dtype of a name; `auto` is bfloat16 on CUDA and float32 on a CPU."""
    if name != "auto":
        return DTYPES[name]
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def device_name(device: torch.device) -> str:
    """The name of a device, for a person."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"cpu x{torch.get_num_threads()}"
