"""Overlays: JSON files of entries that win over the built-in ones, without a change of code.

A file that the tuner wrote carries the stamp of the machine it was measured on, and elsewhere it is rejected; a file
without a stamp, written by hand, serves everywhere. Names may be spelled as in EdgeFM's table 1
(kernels/table/dimensions.py).
"""

from __future__ import annotations

import importlib.metadata
import platform
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Literal

import torch
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from edgeflow.jetson import read_board
from edgeflow.kernels.table.dimensions import read_kind, read_kv, read_model, read_role, read_signature
from edgeflow.kernels.table.implementations import Hardware
from edgeflow.kernels.table.model_shape import ModelShape
from edgeflow.kernels.table.operator_table import OperatorKey, TableEntry
from edgeflow.kernels.weights import FLOAT
from edgeflow.version import __version__
from edgeflow_client.errors import ConfigError
from edgeflow_client.files import read_regular

DRIVER_TIMEOUT_S = 10
MOST_BYTES = 16 << 20
MOST_THREADS = 1024
ANY_MODEL = "--model MODEL"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class OverlayStamp(_Strict):
    """The machine and software that a measurement is valid for; "" where there is none."""

    device: str
    hw_profile: str
    dtype: str
    weights: str = "float"
    """`float`, or the format that float weights may be converted to."""
    driver: str
    torch: str
    triton: str
    flashinfer: str
    edgeflow: str
    threads: int = Field(0, ge=0, le=MOST_THREADS)
    """The CPU threads of torch; 0 on a GPU."""
    power: dict[str, str] = {}
    """Power mode and largest clocks of a Jetson (`edgeflow.jetson`). Another mode changes times, not what is valid."""


class OverlayEntry(_Strict):
    """The dimensions, and the medians measured: microseconds of this entry and of what served before."""

    model_name: Annotated[str, AfterValidator(read_model)] = ""
    hw_profile: str = ""
    op_kind: Annotated[str, AfterValidator(read_kind)] = ""
    layer_role: Annotated[str, AfterValidator(read_role)] = ""
    op_name: str = ""
    stage: Literal["", "prefill", "decode", "packed"] = ""
    weight: Literal["", "float", "int8", "fp8", "awq"] = ""
    kv: Annotated[str, AfterValidator(read_kv)] = ""
    shape_sig: Annotated[str, AfterValidator(read_signature)] = ""
    impl_id: str
    impl_params: dict[str, int] = {}
    us: float | None = None
    default_us: float | None = None

    @property
    def key(self) -> OperatorKey:
        return OperatorKey(**{field.name: getattr(self, field.name) for field in fields(OperatorKey)})


class Overlay(_Strict):
    """The content of an overlay file."""

    format: Literal[1] = 1
    stamp: OverlayStamp | None = None
    model: ModelShape | None = None
    """The tuned model."""
    entries: list[OverlayEntry] = []


def read_overlay(path: Path) -> Overlay:
    """Read an overlay; ConfigError names the field at fault."""
    try:
        return Overlay.model_validate_json(read_regular(path, MOST_BYTES))
    except OSError as error:
        raise ConfigError(f"operator overlay {path}: {error.strerror or 'unreadable'}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise ConfigError(f"operator overlay {path}: {where}: {first['msg']}") from None


def load_entries(
    path: Path,
    device: torch.device,
    dtype: torch.dtype,
    weights: str = "float",
    tuned_for: str = ANY_MODEL,
    threads: int | None = None,
) -> Sequence[TableEntry]:
    """Entries for `OperatorTable.overlaid`; ConfigError where the stamp is of another machine or version.

    tuned_for: as in `reject_stale`. threads: of a service, which must be those of the stamp; None = torch takes those
    of the stamp (`adopt_threads`).
    """
    overlay = read_overlay(path)
    stamp = overlay.stamp
    if stamp is not None:
        now = current_stamp(device, dtype, weights, stamp.threads if threads is None else threads)
        reject_stale(path, stamp, now, tuned_for)
        adopt_threads(stamp)
    return table_entries(overlay, path.name)


def table_entries(overlay: Overlay, origin: str) -> list[TableEntry]:
    """The entries of an overlay as the table has them."""
    return [TableEntry(each.key, each.impl_id, dict(each.impl_params), origin) for each in overlay.entries]


def reject_stale(path: Path, stamp: OverlayStamp, now: OverlayStamp, tuned_for: str = ANY_MODEL) -> None:
    """Raise ConfigError where a stamp differs from that of this machine.

    tuned_for: the options by which `edgeflow tune` tunes for the model that is served (`tune_options`).
    """
    for name, theirs in stamp.model_dump(exclude={"power"}).items():
        mine = getattr(now, name)
        if theirs != mine:
            options = f"{tuned_for} --device {now.hw_profile.partition('_')[0]} --dtype {now.dtype}"
            options += f" --weights {now.weights}" if now.weights != FLOAT else ""
            options += f" --threads {now.threads}" if now.threads else ""
            raise ConfigError(
                f"operator overlay {path}: tuned with {name} {theirs or 'none'}, here it is {mine or 'none'}: "
                f"write another file with `edgeflow tune {options} --out FILE`"
            )


def tune_options(model: str, head: str = FLOAT) -> str:
    """The options by which `edgeflow tune` tunes for a model. head: the format in which a chat model's head is held."""
    return f"--model {shlex.quote(model)}" + (f" --head {head}" if head != FLOAT else "")


def adopt_threads(stamp: OverlayStamp) -> None:
    """Have torch compute with the CPU threads of a stamp; nothing changes for the stamp of a GPU."""
    if stamp.threads:
        torch.set_num_threads(stamp.threads)


def current_stamp(device: torch.device, dtype: torch.dtype, weights: str = "float", threads: int = 1) -> OverlayStamp:
    """The stamp of this machine. threads: on a CPU."""
    return OverlayStamp(
        device=_device_name(device),
        hw_profile=Hardware.of(device).profile,
        dtype=str(dtype).removeprefix("torch."),
        weights=weights,
        driver=_driver() if device.type == "cuda" else "",
        torch=torch.__version__,
        triton=_version("triton"),
        flashinfer=_version("flashinfer-python"),
        edgeflow=__version__,
        threads=threads if device.type == "cpu" else 0,
        power=board.power if (board := read_board()) is not None else {},
    )


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"


def _driver() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=DRIVER_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.split("\n")[0].strip()


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""
