"""What this machine has, what is missing, and how to get it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

EXTRAS = {
    "server": ("fastapi", "grpcio", "llguidance", "msgpack", "pillow", "prometheus-client", "pydantic", "safetensors",
               "simplejpeg", "tokenizers", "torch", "typer", "uvicorn"),
    "demo": ("matplotlib", "mujoco"),
    "cuda": ("triton",),
    "dev": ("hypothesis", "mypy", "pytest", "ruff", "transformers"),
}  # fmt: skip
OPTIONAL_EXTRAS = {"cuda", "dev"}
CUDA_ADVICE = "pip install --no-deps --require-hashes -r constraints/cuda.txt"
FLASHINFER_ADVICE = f"{CUDA_ADVICE}   (it compiles its kernels when they are first used: needs nvcc)"
RENDER_TIMEOUT_S = 60
RENDER_ADVICE = "apt-get install libegl1 libgl1 libgl1-mesa-dri   (or: apt-get install libosmesa6)"


class Verdict(str, Enum):
    """ok; missing but not needed to serve; needed."""

    OK = "ok"
    OPTIONAL = "optional"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report; `advice` says how to mend it."""

    subject: str
    verdict: Verdict
    found: str
    advice: str = ""


def examine() -> list[Finding]:
    """Every check, in the order a new user meets trouble."""
    checks: list[Callable[[], list[Finding]]] = [
        _python, _machine, _packages, _torch, _flashinfer, _rendering, _embedded_policy,
    ]  # fmt: skip
    return [finding for check in checks for finding in check()]


def healthy(findings: list[Finding]) -> bool:
    """Whether nothing needed is missing."""
    return all(finding.verdict is not Verdict.MISSING for finding in findings)


def _python() -> list[Finding]:
    version = platform.python_version()
    if (3, 10) <= sys.version_info[:2] <= (3, 12):
        return [Finding("Python", Verdict.OK, f"{version} at {sys.executable}")]
    return [Finding("Python", Verdict.MISSING, version, "use Python 3.10, 3.11 or 3.12")]


def _machine() -> list[Finding]:
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    found = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, {memory_bytes / 2**30:.1f} GiB"
    return [Finding("machine", Verdict.OK, found)]


def _packages() -> list[Finding]:
    findings = []
    for extra, names in EXTRAS.items():
        versions = {name: _version(name) for name in names}
        missing = [name for name, version in versions.items() if version is None]
        found = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
        verdict = Verdict.OK
        if missing:
            found = f"missing: {', '.join(missing)}"
            verdict = Verdict.OPTIONAL if extra in OPTIONAL_EXTRAS else Verdict.MISSING
        advice = CUDA_ADVICE if extra == "cuda" else f"pip install -c constraints/cpu.txt 'edgeflow[{extra}]'"
        findings.append(Finding(f"extra [{extra}]", verdict, found, advice if missing else ""))
    return findings


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _torch() -> list[Finding]:
    try:
        import torch
    except ImportError as error:
        return [Finding("torch", Verdict.MISSING, str(error), "make setup")]
    found = f"{torch.__version__}, {torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}"
    if not torch.cuda.is_available():
        advice = "install NVIDIA's driver and a CUDA build of torch to use a GPU"
        return [Finding("torch", Verdict.OK, found), Finding("CUDA", Verdict.OPTIONAL, "no CUDA device", advice)]
    devices = []
    for index in range(torch.cuda.device_count()):
        major, minor = torch.cuda.get_device_capability(index)
        devices.append(f"{torch.cuda.get_device_name(index)} (sm_{major}{minor})")
    return [Finding("torch", Verdict.OK, found), Finding("CUDA", Verdict.OK, ", ".join(devices))]


def _flashinfer() -> list[Finding]:
    """Further candidates for a GPU's operators; without it the others serve."""
    try:
        import flashinfer  # noqa: F401
    except ModuleNotFoundError as error:
        found = "not installed" if error.name == "flashinfer" else f"needs {error.name}"
    except Exception as error:  # whatever goes wrong inside it
        found = f"does not import: {error}".splitlines()[0]
    else:
        return [Finding("FlashInfer", Verdict.OK, _version("flashinfer-python") or "installed")]
    return [Finding("FlashInfer", Verdict.OPTIONAL, f"{found}; other operators serve", FLASHINFER_ADVICE)]


def _rendering() -> list[Finding]:
    """A frame of the simulated robot, in a process of its own: a bad driver may take it down."""
    code = "from edgeflow.demo.sim import RobotSim; print(RobotSim(0).capture().shape)"
    try:
        result = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=RENDER_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return [Finding("headless rendering", Verdict.MISSING, f"no frame in {RENDER_TIMEOUT_S} s", RENDER_ADVICE)]
    if result.returncode == 0:
        return [Finding("headless rendering", Verdict.OK, f"a frame of {result.stdout.strip()}")]
    last = result.stderr.strip().splitlines()[-1] if result.stderr.strip() else f"exit code {result.returncode}"
    return [Finding("headless rendering", Verdict.MISSING, last, RENDER_ADVICE)]


def _embedded_policy() -> list[Finding]:
    path = Path(__file__).parent / "demo" / "policy" / "model.safetensors"
    if path.is_file():
        return [Finding("embedded policy", Verdict.OK, f"{path.stat().st_size / 2**20:.1f} MiB")]
    return [Finding("embedded policy", Verdict.MISSING, str(path), "edgeflow train-demo, or reinstall edgeflow")]
