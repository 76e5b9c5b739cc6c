"""The facts of an engine for recordings: machine, libraries, operators, model, configuration."""

from __future__ import annotations

import platform
import sys
from importlib import metadata
from pathlib import Path

import torch
import xxhash

from edgeflow.config.service import ServiceConfig
from edgeflow.engine.placement import choose_device, choose_dtype, operator_table
from edgeflow.kernels.kv.formats import DENSE
from edgeflow.kernels.table.dimensions import STAGES
from edgeflow.kernels.table.implementations import Hardware
from edgeflow.kernels.table.operator_table import OperatorKey
from edgeflow.kernels.table.overlay import tune_options
from edgeflow.pass_records import EngineFacts
from edgeflow.policies.registry import plugin_of
from edgeflow.version import __version__
from edgeflow.worker.build import BuiltEngine

COMPUTING = ("torch", "numpy", "onnxruntime", "triton", "flashinfer")
"""Libraries that compute, where they are loaded."""
VECTOR_FLAGS = ("amx", "asimd", "avx", "bf16", "f16c", "fma", "fphp", "i8mm", "neon", "sse", "sve")
"""Beginnings of the names of vector instructions."""
PRIVATE = frozenset(
    (
        "grpc",
        "http",
        "health",
        "limits",
        "timing",
        "recording",
        "standby",
        "realtime",
        "chat",
        "tls",
        "tokens_file",
        "insecure",
    )
)
"""Sections of the configuration that an engine does not read: addresses, limits, tokens, certificates."""
PRIVATE_OF_CLIENTS = frozenset(("host", "port", "peers", "metadata", "faults"))


def engine_facts(config: ServiceConfig, built: BuiltEngine) -> EngineFacts:
    """The facts of an engine that this process has built."""
    device = choose_device(config.device)
    dtype = choose_dtype(config.dtype, device)
    cpu, flags = _processor()
    return EngineFacts(
        version=__version__,
        model=config.model,
        fingerprint=built.model_fingerprint,
        family=built.family,
        plugin=plugin_of(built.family),
        machine=platform.machine(),
        cpu=cpu,
        cpu_capability=torch.backends.cpu.get_cpu_capability(),
        cpu_flags=flags,
        threads=torch.get_num_threads(),
        libraries=_libraries(),
        device=built.device_name,
        dtype=str(dtype).removeprefix("torch."),
        graphs=built.engine.graphs is not None,
        operators=_operators(config, device, dtype),
        overlay=xxhash.xxh3_128_hexdigest(Path(config.operators).read_bytes()) if config.operators else "",
        kv_format=getattr(built.engine.policy, "kv_format", DENSE).name,
        sessions=built.limits.max_sessions,
        config=_engine_config(config),
    )


def _engine_config(config: ServiceConfig) -> str:
    """The part of a configuration that an engine reads, with the names of cameras and state."""
    excluded: dict[str, object] = {name: True for name in PRIVATE if name in ServiceConfig.model_fields}
    fronts = dict.fromkeys(config.frontends.dialects, PRIVATE_OF_CLIENTS)
    excluded["frontends"] = {"host": True, "port": True, "faults": True, **fronts}
    return config.model_dump_json(exclude=excluded)  # type: ignore[arg-type]


def _operators(config: ServiceConfig, device: torch.device, dtype: torch.dtype) -> dict[str, str]:
    overlay, threads = Path(config.operators) if config.operators else None, config.torch_threads
    tuned_for = tune_options(config.model)
    table = operator_table(overlay, config.weights, device, dtype, tuned_for=tuned_for, threads=threads)
    hardware, found = Hardware.of(device), {}
    for operator in table.operators:
        for stage in STAGES:
            chosen = table.choose(OperatorKey(op_name=operator, stage=stage), hardware, dtype)
            found[f"{operator} {stage}"] = chosen.implementation.impl_id
    return found


def _libraries() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in COMPUTING:
        if name in sys.modules:
            try:
                found[name] = metadata.version(name)
            except metadata.PackageNotFoundError:
                found[name] = str(getattr(sys.modules[name], "__version__", "unknown"))
    return found


def _processor() -> tuple[str, tuple[str, ...]]:
    """The model of the processor and its vector instructions, as far as the system says."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor(), ()
    fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    flags = (fields.get("flags") or fields.get("Features") or "").split()
    vector = tuple(sorted({flag for flag in flags if flag.startswith(VECTOR_FLAGS)}))
    return fields.get("model name") or platform.processor(), vector
