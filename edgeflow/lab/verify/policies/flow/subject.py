"""A flow-matching checkpoint under verification, and how its values are compared."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from edgeflow.engine.flow.frames import FlowSizes
from edgeflow.lab.verify.policies.flow.recorded import Recording
from edgeflow.lab.verify.recorded.comparison import CheckResult, compare
from edgeflow.policies.flow.config import FlowConfig
from edgeflow.policies.flow.network import PrefixedNetwork
from edgeflow.policies.flow.policy import Margin

Results = list[tuple[str, CheckResult]]
"""Comparisons, each with the mode that it was made in."""
Values = Callable[[Recording, FlowSizes], dict[str, Tensor]]
"""Further values of a recording's frames, by stored name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerances:
    """Absolute ones. relative: intermediate values may be off by this part of the largest one, None = as results."""

    results: float
    relative: float | None = None

    def compare(self, case: str, name: str, found: Tensor, wanted: Tensor) -> CheckResult:
        """Compare a stored value; integers have to be equal."""
        result = compare(case, name.partition(".")[2].replace("_", " "), found, wanted, self.results)
        if not wanted.is_floating_point():
            return replace(result, tolerance=0.0)
        if self.relative is not None and name.startswith("mid.") and wanted.numel():
            return replace(result, tolerance=self.relative * wanted.abs().max().item())
        return result


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """sizes: of answers with the checkpoint's number of steps. more: values of the family alone."""

    directory: Path
    config: FlowConfig
    sizes: FlowSizes
    network: PrefixedNetwork
    margin: Margin
    tolerances: Tolerances
    more: Values


def unknown(case: str, names: Iterable[str]) -> Iterator[CheckResult]:
    """Stored values that nothing was compared with."""
    for name in sorted(names):
        yield CheckResult(case, f"unknown {name}", math.inf, 0.0)
