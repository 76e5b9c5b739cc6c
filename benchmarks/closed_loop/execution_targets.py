"""The targets of the executions of a flow policy, beside what was measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

Row = Mapping[str, Any]

SUCCESS: Final = {
    ("orin", 0.0): 98,
    ("orin", 2.5): 97,
    ("orin", 5.0): 90,
    ("orin-smolvla", 0.0): 99,
    ("orin-smolvla", 5.0): 95,
    ("orin-pi05", 0.0): 100,
    ("orin-pi05", 5.0): 99,
    ("orin-pi05", 10.0): 95,
    ("rtx5090", 5.0): 99,
    ("rtx5090", 10.0): 97,
}
"""The least success of `auto` in per cent, by device and speed of the objects in cm/s."""
TARGET_CELLS: Final = frozenset(SUCCESS)
STILL_SECONDS: Final = 2.2
"""The most seconds per success of `auto`: orin, still objects."""
MANY: Final = 200
BELOW_MANY, BELOW_FEW = 6, 3
"""Episodes by which `auto` may be below the best fixed execution: of MANY, and of fewer."""


def execution_targets(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Each target of the cells that were measured: cell, figure, measured value, target, and whether it is met."""
    moving = [row for row in rows if not row["jump_cm"]]
    autos = [row for row in moving if row["execution"] == "auto"]
    judged = [each for auto in autos for each in _of_cell(auto, [row for row in moving if _same_cell(row, auto)])]
    return [
        {"cell": auto["cell"], "figure": figure, "measured": value, "target": target, "met": met}
        for auto, figure, value, target, met in judged
    ]


def _of_cell(auto: Row, same: Sequence[Row]) -> Iterator[tuple[Row, str, float, str, bool]]:
    """same: the rows of all executions there."""
    place = (auto["profile"], auto["speed_cm_s"])
    if (least := SUCCESS.get(place)) is not None:
        success = 100 * auto["success"]
        yield auto, "success, %", success, f"at least {least}", success >= least
    if place == ("orin", 0.0):
        seconds = auto["seconds_per_success"]
        met = seconds is not None and seconds <= STILL_SECONDS
        yield auto, "seconds per success", float("nan") if seconds is None else seconds, f"at most {STILL_SECONDS}", met
    if auto["profile"] == "rtx5090":
        held = auto["held_ticks_per_minute"]
        yield auto, "held ticks per minute", held, "0", held == 0
    fixed = [row["successes"] for row in same if row is not auto and row["episodes"] == auto["episodes"]]
    if fixed:
        below, most = max(fixed) - auto["successes"], BELOW_MANY if auto["episodes"] >= MANY else BELOW_FEW
        yield auto, "episodes below the best fixed execution", below, f"at most {most}", below <= most


def _same_cell(row: Row, other: Row) -> bool:
    return (row["profile"], row["speed_cm_s"]) == (other["profile"], other["speed_cm_s"])
