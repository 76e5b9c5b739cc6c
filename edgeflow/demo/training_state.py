"""The file from which a training run resumes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from edgeflow.errors import ConfigError


def write_state(path: Path, tensors: Mapping[str, Tensor], *, steps: int, cpu_seconds: float, seed: int) -> None:
    """Write one safetensors file, replacing it as a whole."""
    facts = {"steps": str(steps), "cpu_seconds": f"{cpu_seconds:.3f}", "seed": str(seed)}
    partial = path.with_suffix(".partial")
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, partial, facts)
    partial.replace(path)


def read_state(path: Path, seed: int) -> tuple[dict[str, Tensor], int, float]:
    """Read tensors, steps done and CPU seconds so far; ConfigError when the run had another seed."""
    with safe_open(path, "pt") as file:
        facts = file.metadata()
        if facts["seed"] != str(seed):
            raise ConfigError(f"seed is {seed}, but {path} was trained with seed {facts['seed']}")
        saved = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    return saved, int(facts["steps"]), float(facts["cpu_seconds"])
