"""The deviation of one candidate of a case."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from edgeflow.lab.trials.cases import TrialCase
from edgeflow.lab.trials.compare import ReferenceOutputs


def deviation(
    case: TrialCase,
    function: Callable[..., Any],
    reference: Callable[..., Any],
    device: torch.device,
    dtype: torch.dtype,
) -> float:
    """The deviation of `function` from a case's reference."""
    return ReferenceOutputs.of(case, reference, device, dtype).deviation(function)
