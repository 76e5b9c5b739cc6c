"""Sections: what this machine is, and the copy bandwidth and matrix rate that it reaches."""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess

import torch

from edgeflow.kernels.table.implementations import Hardware
from edgeflow.kernels.timing import median_us
from edgeflow.lab.gpu.section_order import Found
from edgeflow.lab.gpu.section_setting import SectionSetting, named

SAMPLES = 15
TIMEOUT_S = 10
LIBRARIES = ("torch", "triton", "transformers", "numpy", "pydantic", "flashinfer-python")


def facts(setting: SectionSetting) -> Found:
    """The device, its driver and the versions of libraries; None for a library that is missing."""
    device = setting.device
    found: Found = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "profile": Hardware.of(device).profile,
        "dtype": named(setting.dtype),
        **{name: _version(name) for name in LIBRARIES},
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found |= {
            "device": properties.name,
            "memory GiB": properties.total_memory / 2**30,
            "multiprocessors": properties.multi_processor_count,
            "cuda": torch.version.cuda,
            "driver, clocks, temperature, power, MIG": _state(),
        }
    return found


def ceilings(setting: SectionSetting) -> Found:
    """Bytes per second of a copy of 1 GiB, read and written, and FLOP/s of a product of 8192 cubed; less on a CPU."""
    device, dtype = setting.device, setting.dtype
    large = device.type == "cuda"
    source = torch.empty(2**29 if large else 2**24, dtype=torch.bfloat16, device=device)
    target = torch.empty_like(source)
    side = 8192 if large else 512
    a = torch.randn(side, side, device=device, dtype=dtype)
    b = torch.randn(side, side, device=device, dtype=dtype)
    times = median_us({"copy": lambda: target.copy_(source), "product": lambda: a @ b}, device, SAMPLES)
    return {
        "copy bytes/s": 2 * source.nbytes / (times["copy"] * 1e-6),
        "matrix FLOP/s": 2 * side**3 / (times["product"] * 1e-6),
    }


def _state() -> str:
    """Driver, clocks, temperature, power and MIG mode as nvidia-smi reports them; empty where it cannot."""
    query = "driver_version,clocks.sm,clocks.mem,temperature.gpu,power.draw,mig.mode.current"
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return result.stdout.strip()


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
