"""The figures that speculative decoding has to reach in closed loop, beside those measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.closed_loop.grid import EXACT, MOVING, ONE_PASS, PIPELINED, RTX5090, SERIAL, STAGES
from edgeflow.contract import Pace
from edgeflow.lab.demo.evaluation import THIS_MACHINE, pace_name

Row = Mapping[str, Any]


def targets(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Each figure with its target, and whether it is met."""
    return [
        {"figure": figure, "measured": measured, "target": target, "met": met}
        for figure, measured, target, met in _compare(rows)
    ]


def _compare(rows: Sequence[Row]) -> Iterator[tuple[str, float, str, bool]]:
    serial, pipelined, exact, single = (_row(rows, pace) for pace in (SERIAL, PIPELINED, EXACT, ONE_PASS))
    own, fast = _row(rows, EXACT, profile=THIS_MACHINE), _row(rows, ONE_PASS, speed=0.1)
    yield _at_most("passes per action, rtx5090", exact["passes_mean"], 2.8)
    yield _at_most("passes per action, this machine", own["passes_mean"], 3.1)
    yield _at_most("mean age, exact / pipelined", exact["age_mean_ms"] / pipelined["age_mean_ms"], 0.45)
    yield _at_most("mean age, exact / serial", exact["age_mean_ms"] / serial["age_mean_ms"], 1.1)
    yield _at_least("actions per second, exact / pipelined", exact["fps"] / pipelined["fps"], 0.55)
    yield _at_least("actions per second, exact / serial", exact["fps"] / serial["fps"], 1.4)
    yield _at_least("success at 5 cm/s, exact", exact["success"], 0.93)
    yield _at_least("success at 5 cm/s, exact - serial", exact["success"] - serial["success"], 0.0)
    yield _at_least("success at 5 cm/s, one pass", single["success"], 0.95)
    yield _at_least("success at 10 cm/s, one pass", fast["success"], 0.7)


def _at_most(figure: str, measured: float, limit: float) -> tuple[str, float, str, bool]:
    return figure, measured, f"at most {limit:g}", measured <= limit


def _at_least(figure: str, measured: float, limit: float) -> tuple[str, float, str, bool]:
    return figure, measured, f"at least {limit:g}", measured >= limit


def _row(rows: Sequence[Row], pace: Pace, *, speed: float = MOVING, profile: str = RTX5090) -> Row:
    """The row of the embedded policy, anchored."""
    wanted = (pace_name(pace, STAGES), profile, speed * 100)
    return next(
        row
        for row in rows
        if (row["mode"], row["profile"], row["speed_cm_s"]) == wanted and row["anchored"] and row["policy"] == "demo"
    )
