"""Builds the operator table of a model: built-in entries, a conversion of weights, an overlay."""

from __future__ import annotations

from pathlib import Path

import torch

from edgeflow.config.service import ServiceConfig
from edgeflow.engine.device import choose_device, choose_dtype, device_name
from edgeflow.kernels.awq import AWQ
from edgeflow.kernels.kv.formats import FP8, KVFormat
from edgeflow.kernels.table.implementations import REFERENCE, Hardware
from edgeflow.kernels.table.operator_table import OperatorKey, OperatorTable, built_in_table
from edgeflow.kernels.table.overlay import ANY_MODEL, load_entries, read_overlay, tune_options
from edgeflow.kernels.weights import FLOAT
from edgeflow.models.quantization import Quantization, read_quantization
from edgeflow_client.errors import ConfigError


def operator_table(
    overlay: Path | None,
    weights: str,
    device: torch.device,
    dtype: torch.dtype,
    *,
    section: str = "",
    tuned_for: str = ANY_MODEL,
) -> OperatorTable:
    """The table; ConfigError where an overlay is stale, or no operator here computes with such weights.

    weights: float, or the format that float weights are converted to. For errors, section: of the configuration, such
    as `chat.`; tuned_for: the options by which `edgeflow tune` tunes for the model (`tune_options`).
    """
    table = built_in_table()
    if weights != "float":
        table = table.converting(weights)
        _check(table, weights, device, dtype, section)
    return table.overlaid(*load_entries(overlay, device, dtype, weights, tuned_for)) if overlay else table


def check_head(table: OperatorTable, head: str, hardware: Hardware, dtype: torch.dtype, *, section: str = "") -> None:
    """ConfigError where no operator but the reference serves a head in that format. section: as of `operator_table`."""
    key = OperatorKey(op_name="linear", layer_role="head", stage="decode", weight=head, shape_sig="m=1")
    if head != FLOAT and table.choose(key, hardware, dtype).implementation.impl_id == REFERENCE:
        raise ConfigError(f"{section}head: {head}: no operator serves such a head on {hardware.device_type}; use float")


def check_kv(kv_format: KVFormat, device: torch.device, *, section: str = "") -> None:
    """ConfigError for fp8 where no kernel reads its numbers on the device. section: as of `operator_table`."""
    if kv_format is not FP8:
        return
    least = built_in_table().implementation("packed_attention", "triton", FP8.name).least_arch
    hardware = Hardware.of(device)
    if hardware.device_type != "cuda" or hardware.arch < least:
        raise ConfigError(
            f"{section}kv: {kv_format.name} needs a CUDA device of compute capability {least // 10}.{least % 10} or "
            f"later, this one is {device_name(device)}: choose int8, which takes as many bytes"
        )


def operators_line(config: ServiceConfig) -> str:
    """The overlays and weights that a service was given, in a line, with what its overlays name but is absent here."""
    overlays = [Path(name) for name in (config.operators, config.chat.operators) if name]
    return "; ".join(filter(None, [config.chosen_operators, _policy_line(config), *map(absent_line, overlays)]))


def quantised_line(table: OperatorTable, quantization: Quantization, device: torch.device, dtype: torch.dtype) -> str:
    """A line about weights in 4 bits: what multiplies a row by them, and the better implementations that cannot."""
    row = OperatorKey(op_name="linear", stage="decode", weight=AWQ, shape_sig="m=1")
    choice = table.choose(row, Hardware.of(device), dtype)
    rows = ", rows rounded to 8 bits" if choice.implementation.deviation else ""
    better = f"; not {', '.join(choice.passed_over)}" if choice.passed_over else ""
    served = f"served by {choice.implementation.impl_id}{rows}{better}"
    return f"4-bit weights (AWQ, groups of {quantization.group}), {served}"


def _policy_line(config: ServiceConfig) -> str:
    """`quantised_line` of the policy; "" for one of floats."""
    quantization = read_quantization(config.model_path)
    if quantization is None:
        return ""
    device = choose_device(config.device)
    dtype = choose_dtype(config.dtype, device)
    overlay = Path(config.operators) if config.operators else None
    table = operator_table(overlay, "float", device, dtype, tuned_for=tune_options(config.model))
    return "policy: " + quantised_line(table, quantization, device, dtype)


def absent_line(overlay: Path) -> str:
    """A sentence about the implementations that an overlay names but that no device can run here; "" without any."""
    table = built_in_table()
    found: dict[str, str] = {}
    for entry in read_overlay(overlay).entries:
        candidates = table.named(entry.op_name, entry.impl_id)
        if candidates and all(each.absent for each in candidates):
            found[entry.impl_id] = candidates[0].absent
    if not found:
        return ""
    reasons = ", ".join(f"{impl_id} ({absent})" for impl_id, absent in found.items())
    return f"{overlay.name} names an implementation that is absent here, {reasons}: the next best one serves"


def _check(table: OperatorTable, weights: str, device: torch.device, dtype: torch.dtype, section: str) -> None:
    row = OperatorKey(op_name="linear", stage="decode", shape_sig="m=1")
    chosen = table.choose(row, Hardware.of(device), dtype)
    if chosen.implementation.weight != weights:
        reasons = "; ".join(each for each in chosen.passed_over if each.startswith(weights))
        raise ConfigError(f"{section}weights: {weights} cannot be served here: {reasons or f'not for {device.type}'}")
