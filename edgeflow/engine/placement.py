"""Where a model runs, from the names in the configuration: device, dtype, operator table, exported graphs."""

from __future__ import annotations

from pathlib import Path

import torch

from edgeflow.artifacts.sessions import Runtime
from edgeflow.config.service import ServiceConfig
from edgeflow.engine.policy import INSTRUCTION, Policy
from edgeflow.jetson import power_difference, read_board
from edgeflow.kernels.awq import AWQ
from edgeflow.kernels.kv.formats import FP8, KVFormat
from edgeflow.kernels.table.implementations import REFERENCE, Hardware
from edgeflow.kernels.table.operator_table import OperatorKey, OperatorTable, built_in_table
from edgeflow.kernels.table.overlay import ANY_MODEL, load_entries, read_overlay, tune_options
from edgeflow.kernels.weights import FLOAT
from edgeflow.models.quantization import Quantization, read_quantization
from edgeflow_client.errors import CheckpointError, ConfigError, InvalidArgument
from edgeflow_client.reasons import Reason

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def choose_device(name: str) -> torch.device:
    """The device of a name; `auto` takes CUDA if available. ConfigError when the named device is not available."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device: cuda is not available here; run `edgeflow doctor`, or use cpu")
    return torch.device(name)


def set_precision() -> None:
    """Have CUDA's libraries compute in this process as `verify` checks it: convolutions in float32 without TF32, and
    sums of half-precision products in float32.

    In some shapes cuBLAS would add parts in the dtype of the outputs: an answer would depend on what shares its pass.
    """
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False


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


def operator_table(
    overlay: Path | None,
    weights: str,
    device: torch.device,
    dtype: torch.dtype,
    *,
    section: str = "",
    tuned_for: str = ANY_MODEL,
    threads: int | None = None,
) -> OperatorTable:
    """The table; ConfigError where an overlay is stale, or no operator here computes with such weights.

    weights: float, or the format that float weights are converted to. For errors, section: of the configuration, such
    as `chat.`; tuned_for: the options by which `edgeflow tune` tunes for the model (`tune_options`). threads: as in
    `load_entries`.
    """
    table = built_in_table()
    if weights != "float":
        table = table.converting(weights)
        _check(table, weights, device, dtype, section)
    if overlay is None:
        return table
    entries = load_entries(overlay, device, dtype, weights=weights, tuned_for=tuned_for, threads=threads)
    return table.overlaid(*entries)


def check_head(table: OperatorTable, head: str, hardware: Hardware, dtype: torch.dtype, *, section: str = "") -> None:
    """Raise ConfigError where no operator but the reference serves a head in that format. section: as in
    `operator_table`.
    """
    key = OperatorKey(op_name="linear", layer_role="head", stage="decode", weight=head, shape_sig="m=1")
    if head != FLOAT and table.choose(key, hardware, dtype).implementation.impl_id == REFERENCE:
        raise ConfigError(f"{section}head: {head}: no operator serves such a head on {hardware.device_type}; use float")


def check_kv(kv_format: KVFormat, device: torch.device, *, section: str = "") -> None:
    """Raise ConfigError for fp8 where no kernel reads its numbers on the device. section: as in `operator_table`."""
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
    """A line on the overlays and weights of a service, with what its overlays name that is absent here, and the power
    mode of their times where it is another.
    """
    overlays = [Path(name) for name in (config.operators, config.chat.operators) if name]
    remarks = [remark(each) for each in overlays for remark in (absent_line, power_line)]
    return "; ".join(filter(None, [config.chosen_operators, _policy_line(config), *remarks]))


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
    tuned_for = tune_options(config.model)
    table = operator_table(overlay, "float", device, dtype, tuned_for=tuned_for, threads=config.torch_threads)
    return "policy: " + quantised_line(table, quantization, device, dtype)


def power_line(overlay: Path) -> str:
    """A sentence about an overlay that was tuned in another power mode, or at other clocks, of this Jetson; else ""."""
    stamp, board = read_overlay(overlay).stamp, read_board()
    differing = power_difference(stamp.power, board.power) if stamp is not None and board is not None else ""
    return f"{overlay.name} was tuned in another power mode ({differing}): its choices may be slow" if differing else ""


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


def runtime_of(config: ServiceConfig) -> Runtime:
    """The runtime of exported graphs: the configured providers, and the threads of the worker."""
    return Runtime(providers=tuple(config.artifact.providers), threads=config.torch_threads)


def check_host(device: torch.device, dtype: str, *, section: str = "") -> None:
    """Raise ConfigError for another device than the host, or for another dtype than float32. section: as in
    `operator_table`.
    """
    if device.type != "cpu":
        raise ConfigError(
            f"device: {device.type}; an exported artifact is fed on the host: use cpu, and artifact.providers for an "
            "accelerator"
        )
    if dtype not in ("auto", "float32"):
        raise ConfigError(
            f"{section}dtype: {dtype}; an exported artifact takes and gives float32: use auto or float32; the "
            "precision of its graphs is chosen when it is exported"
        )


def check_prompt(tokens: int, most: int) -> None:
    """Raise InvalidArgument for a prompt that no bucket of exported graphs holds."""
    if tokens > most:
        raise InvalidArgument(
            f"has {tokens} prompt tokens; the model was exported for {most}",
            field="instruction",
            reason=Reason.INSTRUCTION_TOO_LONG,
        )


def check_text(policy: Policy) -> None:
    """Raise CheckpointError for a policy whose buckets do not hold an ordinary instruction."""
    try:
        policy.text_rows(INSTRUCTION)
    except InvalidArgument as error:
        raise CheckpointError(f"model: {INSTRUCTION!r} {error.text}: export it with more tokens of text") from None
