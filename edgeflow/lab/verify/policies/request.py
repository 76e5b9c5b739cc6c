"""A request to verify a control policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from edgeflow.contract import KVName
from edgeflow_client.types import Mode

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """A request of `edgeflow verify`.

    modes: empty for all that the family has. weights, kv: the precision whose cost is measured; with float and model,
    outputs are compared with the recorded ones. operators: an overlay of the operator table. artifact: the graphs that
    are checked instead of the weights.
    """

    modes: Sequence[Mode]
    progress: Progress
    weights: str
    operators: Path | None
    device: torch.device
    kv: KVName = "model"
    artifact: Path | None = None
