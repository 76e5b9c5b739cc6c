"""What a section of the GPU suite works with, and how it may end besides well."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import torch

from edgeflow.bench.floors import Ceilings
from edgeflow.bench.order import Found, Order
from edgeflow.bench.random_policy import SIZES, PolicySize
from edgeflow.kernels.table import OperatorTable, built_in_table


@dataclass(frozen=True, slots=True)
class Setting:
    """size: the policy that is measured. frames: of each timing. ends: when it must be over (monotonic seconds).

    out: the suite's folder. tell: takes what is found so far, which is kept if the section is cut off.
    measured: the device's ceilings, if known.
    """

    device: torch.device
    dtype: torch.dtype
    size: PolicySize
    frames: int
    ends: float
    out: Path
    tell: Callable[[Found], None]
    measured: Ceilings | None

    @classmethod
    def of(cls, order: Order, tell: Callable[[Found], None]) -> Setting:
        device = torch.device(order.device)
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        measured = None if order.ceilings is None else Ceilings(*order.ceilings)
        ends = monotonic() + order.seconds
        return cls(device, dtype, SIZES[order.size], order.frames, ends, Path(order.out), tell, measured)

    @property
    def cuda(self) -> bool:
        return self.device.type == "cuda"

    @property
    def graphs(self) -> bool:
        """Whether passes can be recorded and replayed."""
        return self.cuda

    @property
    def left_s(self) -> float:
        return self.ends - monotonic()

    @property
    def small(self) -> bool:
        """The suite's own tests: everything is run, on shapes that tell nothing of speed."""
        return self.size.name == "tiny"

    def overlay(self, model: str) -> Path:
        """Where the tuner's choices for a model are."""
        return self.out / f"operators-{model}.json"

    def table(self, model: str, weights: str = "float") -> OperatorTable:
        """The operators as tuned for a model on this machine, as built in where that was not done.

        weights: float, or a precision of `linear`, whose entries are then left out: they are of other weights.
        """
        table = built_in_table() if weights == "float" else built_in_table().allowing(weights)
        path = self.overlay(model)
        if not path.exists():
            return table
        from edgeflow.kernels.overlay import load_entries  # its schema needs pydantic, which a GPU machine may lack

        entries = load_entries(path, self.device, self.dtype)
        return table.overlaid(*(each for each in entries if weights == "float" or each.key.op_name != "linear"))

    def release(self) -> None:
        """Memory of models that nobody holds any more."""
        gc.collect()
        if self.cuda:
            torch.cuda.empty_cache()


class OffError(Exception):
    """A check failed; `found` holds what was seen."""

    def __init__(self, message: str, found: Found) -> None:
        super().__init__(message)
        self.found = found


class SkipError(Exception):
    """This machine cannot do it; says why."""


def named(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
