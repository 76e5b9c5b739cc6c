"""The operator table that a model is built with: what is built in, a precision that is allowed, an overlay."""

from __future__ import annotations

from pathlib import Path

import torch

from edgeflow.errors import ConfigError
from edgeflow.kernels.implementations import Hardware
from edgeflow.kernels.overlay import load_entries
from edgeflow.kernels.table import OperatorKey, OperatorTable, built_in_table


def operator_table(
    overlay: Path | None, weights: str, device: torch.device, dtype: torch.dtype, *, section: str = ""
) -> OperatorTable:
    """ConfigError where an overlay is stale, or nothing here computes with such weights.

    weights: float, or a precision of operator `linear`; section: of the configuration, `chat.`, for what is told.
    """
    table = built_in_table()
    if weights != "float":
        table = table.allowing(weights)
        _check(table, weights, device, dtype, section)
    return table.overlaid(*load_entries(overlay, device, dtype, weights)) if overlay else table


def _check(table: OperatorTable, weights: str, device: torch.device, dtype: torch.dtype, section: str) -> None:
    chosen = table.choose(OperatorKey("linear", shape_sig="m=1"), Hardware.of(device), dtype)
    if chosen.implementation.precision != weights:
        reasons = "; ".join(each for each in chosen.passed_over if each.startswith(weights))
        raise ConfigError(f"{section}weights: {weights} cannot be served here: {reasons or f'not for {device.type}'}")
