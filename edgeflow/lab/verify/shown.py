"""The comparisons that a table shows: all of a checkpoint; of a bundle that has thousands, few of each mode."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from edgeflow.lab.verify.eagle_bundle import is_eagle_bundle
from edgeflow.lab.verify.gate_bundle import is_gate_bundle
from edgeflow.lab.verify.recorded.comparison import CheckResult

Results = Sequence[tuple[str, CheckResult]]


def shown(directory: Path, results: Results) -> Results:
    """Comparisons with their modes, as a table has them."""
    many = is_gate_bundle(directory) or is_eagle_bundle(directory)
    return list(_worst(results)) if many else results


def _worst(results: Results) -> Iterator[tuple[str, CheckResult]]:
    """All that are off, by mode and, in one row of each mode, those that agree: the worst of them, and their number."""
    for mode in dict.fromkeys(mode for mode, _ in results):
        own = [result for each, result in results if each == mode]
        yield from ((mode, result) for result in own if not result.ok)
        agree = [result for result in own if result.ok]
        if agree:
            worst = max(agree, key=lambda result: result.deviation / result.tolerance if result.tolerance else 0.0)
            yield mode, replace(worst, quantity=f"{worst.quantity}, the worst of {len(agree)}")
