"""Checks of this machine: what is installed, what is missing, and how to get it."""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from enum import Enum
from pathlib import Path

import typer
from rich.markup import escape

from edgeflow.commands.options import Json
from edgeflow.jetson import read_board
from edgeflow.policies.registry import plugins
from edgeflow_client.errors import ConfigError, how_to_install
from edgeflow_client.loadtest.terminal import FoldingTable, table_console

EXTRAS = {
    "": ("fastapi", "grpcio", "llguidance", "msgpack", "pillow", "prometheus-client", "pydantic", "safetensors",
               "simplejpeg", "tokenizers", "torch", "typer", "uvicorn"),
    "demo": ("matplotlib", "mujoco"),
    "cuda": ("triton",),
    "onnx": ("onnx", "onnxruntime", "onnxscript"),
    "record": ("foxglove-sdk", "mcap", "msgspec", "xxhash"),
    "trace": ("msgspec", "opentelemetry-exporter-otlp-proto-http", "opentelemetry-sdk"),
    "dataset": ("av", "pyarrow"),
    "dev": ("hypothesis", "mypy", "pytest", "ruff", "transformers"),
}  # fmt: skip
OPTIONAL_EXTRAS = {"cuda", "dataset", "dev", "onnx", "record", "trace"}
CUDA_ADVICE = "pip install --no-deps --require-hashes -r constraints/cuda.txt"
FLASHINFER_ADVICE = f"{CUDA_ADVICE}   (it compiles its kernels when they are first used: needs nvcc)"
L4T_FOLDERS = tuple(Path("/usr/lib/aarch64-linux-gnu") / name for name in ("nvidia", "tegra"))
CUDA_PTXAS = Path("/usr/local/cuda/bin/ptxas")
KERNEL_TIMEOUT_S = 120
ONNXRUNTIME = "ONNX Runtime"
RENDER_TIMEOUT_S = 60
PRODUCTS_TIMEOUT_S = 60
PRODUCTS_ADVICE = "apt-get install g++; python -m edgeflow.kernels.native.build"
VERDICT_STYLE = {"ok": "[green]ok[/]", "optional": "[yellow]optional[/]", "missing": "[red]missing[/]"}
POWER_ADVICE = "in a container: -v /var/lib/nvpmodel:/var/lib/nvpmodel:ro -v /etc/nvpmodel.conf:/etc/nvpmodel.conf:ro"
SUPPLY_ADVICE = "a stronger supply, or a lower power mode (sudo nvpmodel -m MODE)"
HEAT_ADVICE = "cool the board, or choose a lower power mode (sudo nvpmodel -m MODE)"
RENDER_ADVICE = "apt-get install libegl1 libgl1 libgl1-mesa-dri   (or: apt-get install libosmesa6)"


class CheckOutcome(str, Enum):
    """The outcome of a check: ok, missing but optional, or missing and needed to serve."""

    OK = "ok"
    OPTIONAL = "optional"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class CheckLine:
    """One line of the report; `advice` says how to fix it."""

    subject: str
    verdict: CheckOutcome
    found: str
    advice: str = ""


def examine() -> list[CheckLine]:
    """Run every check, in the order in which a new user runs into problems."""
    checks: list[Callable[[], list[CheckLine]]] = [
        _python, _machine, _board, _packages, _plugins, _torch, _ptxas, _libcuda, _kernel, _flashinfer, _onnxruntime,
        _products, _rendering, _embedded_policy,
    ]  # fmt: skip
    return [finding for check in checks for finding in check()]


def _python() -> list[CheckLine]:
    version = platform.python_version()
    if (3, 10) <= sys.version_info[:2] <= (3, 14):
        return [CheckLine("Python", CheckOutcome.OK, f"{version} at {sys.executable}")]
    return [CheckLine("Python", CheckOutcome.MISSING, version, "use Python 3.10 to 3.14")]


def _machine() -> list[CheckLine]:
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    found = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, {memory_bytes / 2**30:.1f} GiB"
    return [CheckLine("machine", CheckOutcome.OK, found)]


def _board(root: Path = Path("/")) -> list[CheckLine]:
    """A Jetson's power mode, clocks, temperatures and throttling. root: the root of the files."""
    board = read_board(root)
    if board is None:
        return []
    mode = f"{board.model}, power mode {board.power_mode or 'unknown'}"
    clocks = [
        f"{part} {_megahertz(clock.now_hz)} of {_megahertz(clock.most_hz)} MHz" for part, clock in board.clocks.items()
    ]
    zones = [f"{zone.removesuffix('-thermal')} {degrees:.0f} °C" for zone, degrees in board.temperatures.items()]
    hot = [device for device, throttles in board.throttling.items() if throttles]
    events = [f"{event} {count}" for event, count in board.throttled.items() if count]
    known = CheckOutcome.OPTIONAL if board.power_mode is None else CheckOutcome.OK
    return [
        CheckLine("Jetson", known, mode, POWER_ADVICE if board.power_mode is None else ""),
        CheckLine("clocks", CheckOutcome.OK, ", ".join(clocks) or "unknown"),
        CheckLine(
            "temperature",
            CheckOutcome.OPTIONAL if hot else CheckOutcome.OK,
            ", ".join([*zones, *(f"{device} is active" for device in hot)]) or "unknown",
            HEAT_ADVICE if hot else "",
        ),
        CheckLine(
            "power supply",
            CheckOutcome.OPTIONAL if events else CheckOutcome.OK,
            f"throttled since the start: {', '.join(events) or ('never' if board.throttled else 'unknown')}",
            SUPPLY_ADVICE if events else "",
        ),
    ]


def _megahertz(hertz: int | None) -> str:
    return "unknown" if hertz is None else str(hertz // 1_000_000)


def _packages() -> list[CheckLine]:
    findings = []
    for extra, names in EXTRAS.items():
        if extra == "demo" and not _has_demonstration():
            continue
        versions = {name: _version(name) for name in names}
        missing = [name for name, version in versions.items() if version is None]
        found = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
        verdict = CheckOutcome.OK
        if missing:
            found = f"missing: {', '.join(missing)}"
            verdict = CheckOutcome.OPTIONAL if extra in OPTIONAL_EXTRAS else CheckOutcome.MISSING
        advice = CUDA_ADVICE if extra == "cuda" else how_to_install(extra)
        findings.append(CheckLine(f"extra [{extra}]" if extra else "server", verdict, found, advice if missing else ""))
    return findings


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _plugins() -> list[CheckLine]:
    """The policy families of installed plug-ins, and whether each can be loaded."""
    findings = []
    for plugin in plugins().values():
        subject, origins = f"policy {plugin.name}", ", ".join(plugin.origins)
        try:
            plugin.tried().load()
        except ConfigError as error:
            found = f"{origins}: {error.__cause__!r}" if error.__cause__ else error.text
            findings.append(CheckLine(subject, CheckOutcome.OPTIONAL, found, "fix or remove the distribution"))
        else:
            findings.append(CheckLine(subject, CheckOutcome.OK, origins))
    return findings


def _torch() -> list[CheckLine]:
    try:
        import torch
    except ImportError as error:
        return [CheckLine("torch", CheckOutcome.MISSING, str(error), "make setup")]
    found = f"{torch.__version__}, {torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}"
    if not torch.cuda.is_available():
        advice = "install NVIDIA's driver and a CUDA build of torch to use a GPU"
        return [
            CheckLine("torch", CheckOutcome.OK, found),
            CheckLine("CUDA", CheckOutcome.OPTIONAL, "no CUDA device", advice),
        ]
    devices = []
    for index in range(torch.cuda.device_count()):
        major, minor = torch.cuda.get_device_capability(index)
        devices.append(f"{torch.cuda.get_device_name(index)} (sm_{major}{minor})")
    return [CheckLine("torch", CheckOutcome.OK, found), CheckLine("CUDA", CheckOutcome.OK, ", ".join(devices))]


def _ptxas() -> list[CheckLine]:
    """Triton's assembler: that of TRITON_PTXAS_PATH, or the bundled one. The driver must not be older."""
    named = os.environ.get("TRITON_PTXAS_PATH", "")
    triton = importlib.util.find_spec("triton")
    if triton is None or triton.origin is None:
        return []
    path = Path(named) if named else Path(triton.origin).parent / "backends/nvidia/bin/ptxas"
    match = re.search(r"release (\d+)\.(\d+)", _output_of(path, "--version"))
    if match is None:
        return [
            CheckLine("ptxas", CheckOutcome.OPTIONAL, f"{path} does not run", f"export TRITON_PTXAS_PATH={CUDA_PTXAS}")
        ]
    version = int(match[1]), int(match[2])
    found = f"{version[0]}.{version[1]} at {path}"
    driver = _driver_version()
    if driver is not None and driver < version:
        found += f", newer than the driver's CUDA {driver[0]}.{driver[1]}"
        return [
            CheckLine(
                "ptxas", CheckOutcome.OPTIONAL, found, f"export TRITON_PTXAS_PATH={CUDA_PTXAS}   (the system's own)"
            )
        ]
    return [CheckLine("ptxas", CheckOutcome.OK, found)]


def _driver_version() -> tuple[int, int] | None:
    """The newest CUDA version that the driver supports; None without a driver."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    number = ctypes.c_int()
    if library.cuDriverGetVersion(ctypes.byref(number)) != 0:
        return None
    return number.value // 1000, number.value % 1000 // 10


def _libcuda() -> list[CheckLine]:
    """The driver's library, where Triton looks for it: TRITON_LIBCUDA_PATH, else ldconfig's or the loader's folders."""
    named = os.environ.get("TRITON_LIBCUDA_PATH", "")
    loader = [Path(folder) for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    folders = [Path(named)] if named else [*_ldconfig_folders(), *loader]
    there = [folder for folder in folders if (folder / "libcuda.so.1").exists()]
    if there:
        return [CheckLine("libcuda", CheckOutcome.OK, str(there[0] / "libcuda.so.1"))]
    elsewhere = [folder for folder in L4T_FOLDERS if (folder / "libcuda.so.1").exists()]
    if elsewhere:
        advice = f"export TRITON_LIBCUDA_PATH={elsewhere[0]}"
        return [CheckLine("libcuda", CheckOutcome.OPTIONAL, f"in {elsewhere[0]}, where Triton does not look", advice)]
    found = f"not in {named}" if named else "not found"
    return [
        CheckLine(
            "libcuda", CheckOutcome.OPTIONAL, found, "install NVIDIA's driver; in a container use NVIDIA's runtime"
        )
    ]


def _ldconfig_folders() -> list[Path]:
    lines = _output_of("/sbin/ldconfig", "-p").splitlines()
    return [Path(line.split()[-1]).parent for line in lines if "libcuda.so.1" in line]


def _output_of(*command: str | Path) -> str:
    """The output of a command; "" if it fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def _kernel() -> list[CheckLine]:
    """A Triton kernel, compiled and run in a separate process if there is a GPU."""
    try:
        import torch
    except ImportError:
        return []
    if not torch.cuda.is_available():
        return []
    code = (
        "import torch; from edgeflow.kernels.triton.row_operators import swiglu; "
        "x = torch.ones(2, 64, device='cuda', dtype=torch.bfloat16); swiglu(x); torch.cuda.synchronize()"
    )
    return [_run_apart("Triton kernel", code, KERNEL_TIMEOUT_S, "compiled and run", "see ptxas and libcuda above")]


def _flashinfer() -> list[CheckLine]:
    """FlashInfer: optional implementations of operators on a GPU."""
    try:
        import flashinfer  # noqa: F401
    except ModuleNotFoundError as error:
        found = "not installed" if error.name == "flashinfer" else f"needs {error.name}"
    except Exception as error:  # any failure inside it means that it cannot be used
        found = f"does not import: {error}".splitlines()[0]
    else:
        return [CheckLine("FlashInfer", CheckOutcome.OK, _version("flashinfer-python") or "installed")]
    return [CheckLine("FlashInfer", CheckOutcome.OPTIONAL, f"{found}; other operators serve", FLASHINFER_ADVICE)]


def _onnxruntime() -> list[CheckLine]:
    """The execution providers for exported graphs (artifact.providers)."""
    try:
        import onnxruntime
    except ImportError:
        advice = f"{how_to_install('onnx')}   (exports models as graphs, and serves them)"
        return [CheckLine(ONNXRUNTIME, CheckOutcome.OPTIONAL, "not installed", advice)]
    providers = ", ".join(onnxruntime.get_available_providers())
    return [CheckLine(ONNXRUNTIME, CheckOutcome.OK, f"{onnxruntime.__version__}, providers: {providers}")]


def _products() -> list[CheckLine]:
    """The C++ products for quantised weights on a CPU; slower ones are used without them."""
    code = "import sys; from edgeflow.kernels.native.linear import missing; sys.exit(missing() or 0)"
    finding = _run_apart("products in C++", code, PRODUCTS_TIMEOUT_S, "built", PRODUCTS_ADVICE)
    return [replace(finding, verdict=CheckOutcome.OPTIONAL) if finding.verdict is CheckOutcome.MISSING else finding]


def _rendering() -> list[CheckLine]:
    """A frame of the simulated robot, in a separate process, which a bad driver may crash."""
    if not _has_demonstration():
        return []
    code = "from edgeflow.lab.demo.world.sim import RobotSim; RobotSim(0).capture()"
    return [_run_apart("headless rendering", code, RENDER_TIMEOUT_S, "a frame was drawn", RENDER_ADVICE)]


def _has_demonstration() -> bool:
    """True where the simulated robot is installed; images leave it out."""
    return all(importlib.util.find_spec(f"edgeflow.{name}") is not None for name in ("lab", "lab.demo"))


def _run_apart(subject: str, code: str, limit_s: int, done: str, advice: str) -> CheckLine:
    """Run code in a separate process; the last line of its errors describes a failure."""
    try:
        result = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired:
        return CheckLine(subject, CheckOutcome.MISSING, f"nothing in {limit_s} s", advice)
    if result.returncode == 0:
        return CheckLine(subject, CheckOutcome.OK, done)
    last = result.stderr.strip().splitlines()[-1] if result.stderr.strip() else f"exit code {result.returncode}"
    return CheckLine(subject, CheckOutcome.MISSING, last, advice)


def _embedded_policy() -> list[CheckLine]:
    path = Path(__file__).parents[1] / "embedded" / "policy" / "model.safetensors"
    if path.is_file():
        return [CheckLine("embedded policy", CheckOutcome.OK, f"{path.stat().st_size / 2**20:.1f} MiB")]
    return [CheckLine("embedded policy", CheckOutcome.MISSING, str(path), "edgeflow train-demo, or reinstall edgeflow")]


def doctor(as_json: Json = False) -> None:
    """Check this machine and say how to install what is missing.

    Exits with code 1 if something required is missing.
    """
    findings = examine()
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        table = FoldingTable("subject", "", "found", "how to get it")
        for finding in findings:
            subject, found, advice = map(escape, (finding.subject, finding.found, finding.advice))
            table.add_row(subject, VERDICT_STYLE[finding.verdict.value], found, advice)
        table_console().print(table)
    raise typer.Exit(1 if any(each.verdict is CheckOutcome.MISSING for each in findings) else 0)
