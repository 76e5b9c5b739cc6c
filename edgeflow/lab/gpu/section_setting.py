"""The setting of a section of the GPU suite, and the errors by which it may end early."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import torch

from edgeflow.kernels.table.operator_table import OperatorTable, built_in_table
from edgeflow.kernels.table.overlay import load_entries
from edgeflow.lab.gpu.section_order import Found, Order
from edgeflow.lab.gpu.subjects.floors import Ceilings
from edgeflow.lab.gpu.subjects.random_policy import SIZES, PolicySize

CLOSING_S = 5.0
"""Time before a section's process is killed at which it should stop: enough for its last result and for its exit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionSetting:
    """The device, the policy and the time of one section."""

    device: torch.device
    dtype: torch.dtype
    """bfloat16 on CUDA, float32 on a CPU."""
    size: PolicySize
    """The policy to measure."""
    frames: int
    """Frames per timing."""
    ends: float
    """When the section should stop, in monotonic seconds."""
    out: Path
    """The suite's folder."""
    publish: Callable[[Found], None]
    """Saves the findings so far; they remain if the section is interrupted."""
    measured: Ceilings | None
    """The device's ceilings, if known."""
    bundles: Path | None = None
    """Folder of recorded checkpoints."""

    @classmethod
    def of(cls, order: Order, publish: Callable[[Found], None]) -> SectionSetting:
        """The setting that an order describes."""
        device = torch.device(order.device)
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        measured = None if order.ceilings is None else Ceilings(*order.ceilings)
        return cls(
            device=device,
            dtype=dtype,
            size=SIZES[order.size],
            frames=order.frames,
            ends=order.ends - CLOSING_S,
            out=Path(order.out),
            publish=publish,
            measured=measured,
            bundles=Path(order.bundles) if order.bundles else None,
        )

    @property
    def cuda(self) -> bool:
        """True when the device is a GPU."""
        return self.device.type == "cuda"

    @property
    def graphs(self) -> bool:
        """True when passes can be recorded and replayed."""
        return self.cuda

    @property
    def left_s(self) -> float:
        """Seconds until the section should stop."""
        return self.ends - monotonic()

    @property
    def small(self) -> bool:
        """True in the suite's own test: every section runs, on shapes too small to measure speed."""
        return self.size.name == "tiny"

    def overlay(self, model: str) -> Path:
        """The file of the tuner's choices for a model."""
        return self.out / f"operators-{model}.json"

    def table(self, model: str, weights: str = "float") -> OperatorTable:
        """The operators tuned for a model on this machine, or the built-in ones if none were tuned.

        weights: float, or the format that float weights are converted to; tuned entries of `linear` are then left out,
        since they are for float weights.
        """
        table = built_in_table() if weights == "float" else built_in_table().converting(weights)
        path = self.overlay(model)
        if not path.exists():
            return table
        entries = load_entries(path, self.device, self.dtype)
        return table.overlaid(*(each for each in entries if weights == "float" or each.key.op_name != "linear"))

    def release(self) -> None:
        """Free the memory of models that are not referenced any more."""
        gc.collect()
        if self.cuda:
            torch.cuda.empty_cache()


class OffError(Exception):
    """A check failed; `found` has its findings."""

    def __init__(self, message: str, found: Found) -> None:
        super().__init__(message)
        self.found = found


class SkipError(Exception):
    """This machine cannot run the section; the message says why."""


def named(dtype: torch.dtype) -> str:
    """The name of a dtype, such as bfloat16."""
    return str(dtype).removeprefix("torch.")
