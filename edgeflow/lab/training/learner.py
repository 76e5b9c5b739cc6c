"""Parameters with their optimisers: one update at a time, and the file from which a training run resumes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from edgeflow.lab.outputs import writing
from edgeflow_client.errors import ConfigError

ANEW: Final = "--no-resume starts again"
_MAX_NORM: Final = 1.0  # largest norm of a gradient


class Learner:
    """Parameters and the optimisers that update them, by name.

    Each group of an optimiser has a `peak`, its highest learning rate. done_steps, cpu_seconds: so far. settings: must
    equal those of the run that is resumed, besides the seed and the number of steps. contents: the same for digests of
    files.
    """

    def __init__(
        self,
        named: Mapping[str, nn.Parameter],
        optimisers: Sequence[torch.optim.Optimizer],
        seed: int,
        settings: Mapping[str, str] = MappingProxyType({}),
        contents: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.done_steps, self.cpu_seconds = 0, 0.0
        self._named, self._optimisers = named, optimisers
        self._settings, self._contents = {**settings, "seed": str(seed)}, contents

    def update(self, loss: Tensor, share: float) -> float:
        """Take a step down a loss at a share of the peak rates; return the loss."""
        loss.backward()  # type: ignore[no-untyped-call]
        self.apply(share)
        return float(loss.detach())

    def apply(self, share: float) -> None:
        """Take a step down the summed gradients, at a share of the peak rates."""
        nn.utils.clip_grad_norm_(self._named.values(), _MAX_NORM)
        for optimiser in self._optimisers:
            for group in optimiser.param_groups:
                group["lr"] = group["peak"] * share
            optimiser.step()
            optimiser.zero_grad()
        self.done_steps += 1

    def save(self, path: Path, steps: int) -> None:
        """Write everything that `load` needs to one safetensors file, which is replaced as a whole.

        steps: of the run.
        """
        tensors = _tensors(self._named, self._optimisers)
        facts = {"steps": str(self.done_steps), "cpu_seconds": f"{self.cpu_seconds:.3f}", "of_steps": str(steps)}
        partial = path.with_suffix(".partial")
        with writing(path):
            save_file(tensors, partial, {**self._settings, **self._contents, **facts})
            partial.replace(path)

    def load(self, path: Path, steps: int) -> None:
        """Continue from a state written by `save`; ConfigError if that run had another seed, length or settings.

        steps: of the run; its learning rates depend on it.
        """
        saved, facts = _read_state(path)
        others = _others(facts, self._settings | {"of_steps": str(steps)}, self._contents)
        if others:
            raise ConfigError(f"{path} is of another run ({'; '.join(others)}): {ANEW}, or choose another --out")
        _restore(self._named, self._optimisers, saved)
        self.done_steps, self.cpu_seconds = int(facts["steps"]), float(facts["cpu_seconds"])


def _read_state(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read tensors and metadata; ConfigError if the file is unreadable."""
    try:
        with safe_open(path, "pt") as file:
            facts: dict[str, str] = file.metadata() or {}
            return {name: file.get_tensor(name) for name in file.keys()}, facts  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise ConfigError(f"{path} is not the state of a training run: remove it to start again") from error


def _others(facts: Mapping[str, str], settings: Mapping[str, str], contents: Mapping[str, str]) -> list[str]:
    """The differences between a state and a run, in words. A state without a length matches any."""
    stated = {"of_steps": settings["of_steps"], **facts}
    others = [
        f"{'steps' if name == 'of_steps' else name} is {value}, was {stated.get(name, 'not stated')}"
        for name, value in settings.items()
        if stated.get(name) != value
    ]
    return others + [f"{name} is not what it was" for name, value in contents.items() if stated.get(name) != value]


def _tensors(named: Mapping[str, nn.Parameter], optimisers: Iterable[torch.optim.Optimizer]) -> dict[str, Tensor]:
    """Parameters and their moments by name, as `_restore` takes them."""
    tensors = {name: parameter.detach().contiguous() for name, parameter in named.items()}
    for optimiser in optimisers:
        for name, parameter in named.items():
            for moment, value in optimiser.state.get(parameter, {}).items():
                tensors[f"optimiser.{moment}.{name}"] = value.contiguous()
    return tensors


def _restore(
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
