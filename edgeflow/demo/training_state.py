"""The file from which a training run resumes, and what the optimisers know of each parameter."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

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


def training_tensors(
    named: Mapping[str, nn.Parameter], optimisers: Iterable[torch.optim.Optimizer]
) -> dict[str, Tensor]:
    """Parameters and their moments by name, as `restore` takes them."""
    tensors = {name: parameter.detach() for name, parameter in named.items()}
    for optimiser in optimisers:
        for name, parameter in named.items():
            for moment, value in optimiser.state.get(parameter, {}).items():
                tensors[f"optimiser.{moment}.{name}"] = value
    return tensors


def restore(
    named: Mapping[str, nn.Parameter], optimisers: Iterable[torch.optim.Optimizer], saved: Mapping[str, Tensor]
) -> None:
    """Set parameters and moments to saved ones."""
    moments: dict[str, dict[str, Tensor]] = {name: {} for name in named}
    for key in saved:
        if key.startswith("optimiser."):
            _, moment, name = key.split(".", 2)
            moments[name][moment] = saved[key].to(named[name].device)
    names = {parameter: name for name, parameter in named.items()}
    for name, parameter in named.items():
        parameter.data.copy_(saved[name])
    for optimiser in optimisers:
        for group in optimiser.param_groups:
            for parameter in group["params"]:
                if moments[names[parameter]]:
                    optimiser.state[parameter] = moments[names[parameter]]
