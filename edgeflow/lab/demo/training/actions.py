"""The policy's action space: limits, bins, ids."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from edgeflow.lab.demo.training.network import BINS

DATASET_KEY: Final = "edgeflow_demo"
NAMES: Final = ("x", "y", "z", "roll", "pitch", "yaw", "gripper")
UNITS: Final = ("m", "m", "m", "rad", "rad", "rad", "fraction")
LOW: Final = (-0.26, -0.21, -0.08, -0.85, -0.85, -1.25, 0.0)
HIGH: Final = (0.26, 0.18, 0.33, 0.85, 0.85, 1.25, 1.0)
SMOOTHING: Final = 1.0  # bins: how far a target spreads over its neighbours


def scaled(actions: Tensor) -> Tensor:
    """Scale actions `[..., 7]` from their units to [-1, 1]; values outside are clipped."""
    low, high = torch.tensor(LOW), torch.tensor(HIGH)
    return (2.0 * (actions - low) / (high - low) - 1.0).clamp(-1.0, 1.0)


def bin_centres() -> Tensor:
    """Centres of the bins, `[BINS - 1]`, ascending."""
    edges = torch.linspace(-1.0, 1.0, BINS, dtype=torch.float64)
    return ((edges[:-1] + edges[1:]) / 2.0).float()


def ids_of(values: Tensor, text_vocab: int) -> Tensor:
    """Token ids of scaled values; the lowest bin has the highest id."""
    width = 2.0 / (BINS - 1)
    index = ((values + 1.0) / width).floor().clamp(0, BINS - 2).long()
    return text_vocab - 1 - index


def soft_targets(values: Tensor, vocab: int, text_vocab: int) -> Tensor:
    """Probabilities `[..., vocab]` around scaled values `[...]`: a bell curve of SMOOTHING bins."""
    width = SMOOTHING * 2.0 / (BINS - 1)
    bell = torch.softmax(-0.5 * ((bin_centres() - values[..., None]) / width) ** 2, dim=-1)
    target = torch.zeros(*values.shape, vocab)
    target[..., text_vocab - (BINS - 1) : text_vocab] = bell.flip(-1)
    return target


def norm_stats(actions: Tensor, states: int) -> dict[str, Any]:
    """The `norm_stats` of config.json: mean, std, min and max of actions `[N, 7]` in their units."""
    return {
        DATASET_KEY: {
            "action": {
                "mask": [True] * len(NAMES),
                "mean": _rounded(actions.mean(0)),
                "std": _rounded(actions.std(0)),
                "min": _rounded(actions.amin(0)),
                "max": _rounded(actions.amax(0)),
                "q01": list(LOW),
                "q99": list(HIGH),
            },
            "num_trajectories": 0,
            "num_transitions": states,
        }
    }


def _rounded(values: Tensor) -> list[float]:
    return [round(float(value), 6) for value in values]
