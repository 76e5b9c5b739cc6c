"""Tables of the latencies, in the form of the paper's.

The paper's figures are those of EdgeFM's Tables 9 and 10: SmolVLA-0.45B in INT16 on the BPU of a Horizon Journey 6M.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from edgeflow.lab.gpu.subjects.floors import Ceilings, PassFloor

JOURNEY = "Journey 6M, INT16 (EdgeFM's paper)"
JOURNEY_PREFILL: Mapping[int, float] = {512: 74.26, 1024: 248.27, 2048: 899.39}
"""Mean milliseconds, by rows of the prefix."""
JOURNEY_STEP: Mapping[tuple[int, int], tuple[float, float, float, float]] = {
    (512, 32): (12.51, 12.42, 12.31, 12.89),
    (512, 64): (15.00, 14.89, 14.79, 15.47),
    (1024, 32): (19.48, 19.32, 19.13, 20.62),
    (1024, 64): (23.25, 23.13, 22.91, 23.62),
    (2048, 32): (38.38, 38.41, 37.86, 38.75),
    (2048, 64): (49.43, 49.43, 48.92, 50.49),
}
"""Mean, median, least and most milliseconds, by rows of prefix and suffix."""
ENGINE32, ENGINE16, ONNX = "engine, float32", "engine, bfloat16", "ONNX Runtime, float32"
FIGURES = ("mean", "median", "min", "max", "cpu_median")
STAGES = {"towers": "towers", "prefill": "prefill", "step": "one step", "tick": "prefill and a step of every frame"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeRow:
    """A system in one shape."""

    stage: str
    prefix: int
    suffix: int
    system: str
    ms: Mapping[str, float]
    """Statistics of its times."""
    work: PassFloor
    """Work of the call."""


Rates = Mapping[str, Ceilings]
"""Rates of this machine, by system."""


def floor_ms(row: ShapeRow, rates: Rates) -> float:
    """The least time of a call here."""
    return rates[row.system].floor_s(row.work) * 1e3


def as_json(row: ShapeRow, rates: Rates) -> dict[str, Any]:
    """All figures; FLOPs and bytes as integers."""
    floor, place = floor_ms(row, rates), {"stage": row.stage, "prefix": row.prefix, "suffix": row.suffix}
    work = {"flops": int(row.work.flops), "bytes": int(row.work.bytes)}
    times = {"ms": dict(row.ms), "floor_ms": floor, "min_over_floor": row.ms["min"] / floor}
    published = {"journey_6m_ms": list(journey(row.stage, (row.prefix, row.suffix)))}
    return {**place, "system": row.system, **times, **work, **published}


def tables(rows: Sequence[ShapeRow], rates: Rates) -> Iterator[Table]:
    """A table for each stage, with the paper's figures where it has them."""
    for stage, title in STAGES.items():
        chosen = [row for row in rows if row.stage == stage]
        if not chosen:
            continue
        table = Table(
            "prefix", "suffix", "system", "mean", "median", "min", "max", "cpu", "GFLOP", "GB", "floor", "min/floor",
            title=f"{title}: ms",
        )  # fmt: skip
        for place in dict.fromkeys((row.prefix, row.suffix) for row in chosen):
            for row in chosen:
                if (row.prefix, row.suffix) == place:
                    table.add_row(*_cells(row, rates))
            published = journey(stage, place)
            if published:
                table.add_row(*_place(stage, place), JOURNEY, *(f"{each:.2f}" for each in published))
        yield table


def journey(stage: str, place: tuple[int, int]) -> tuple[float, ...]:
    """The paper's milliseconds: the mean of a prefill; mean, median, least and most of a step."""
    if stage == "prefill" and place[0] in JOURNEY_PREFILL:
        return (JOURNEY_PREFILL[place[0]],)
    return JOURNEY_STEP.get(place, ()) if stage == "step" else ()


def _cells(row: ShapeRow, rates: Rates) -> list[str]:
    times = [f"{row.ms[name]:.1f}" for name in FIGURES]
    work = [f"{row.work.flops / 1e9:.1f}", f"{row.work.bytes / 1e9:.2f}"]
    place = _place(row.stage, (row.prefix, row.suffix))
    floor = floor_ms(row, rates)
    return [*place, row.system, *times, *work, f"{floor:.1f}", f"{row.ms['min'] / floor:.2f}"]


def _place(stage: str, place: tuple[int, int]) -> tuple[str, str]:
    """Towers and prefills have no suffix, towers no prefix."""
    prefix, suffix = map(str, place)
    return ("-" if stage == "towers" else prefix), (suffix if stage in ("step", "tick") else "-")
