"""How deep a session pipelines.

A *tick* takes `rounds` passes: one packed pass (the newest frame's prefill and one decode row for each frame in
flight) and rounds - 1 decode-only passes. A frame leaves after `depth` ticks. Depth 1 is serial decoding (rounds = K),
depth K is the pipeline of ActionFlow section 3.1 (rounds = 1); the depths between trade rate for age.
"""

from __future__ import annotations

from edgeflow.types import Mode


def rounds_of(depth: int, stages: int) -> int:
    """Passes per tick: ceil(K / depth)."""
    return -(-stages // depth)


def depths_of(stages: int) -> tuple[int, ...]:
    """The depths that differ in effect, in ascending order: ceil(K / r) for every r that some depth gives."""
    return tuple(sorted({-(-stages // rounds_of(depth, stages)) for depth in range(1, stages + 1)}))


def depth_of(mode: Mode, stages: int, depth: int = 0) -> int:
    """The depth of a mode; `depth` is read for Mode.DEPTH only. ValueError for Mode.AUTO, which needs a forecast."""
    match mode:
        case Mode.SERIAL:
            return 1
        case Mode.PIPELINED:
            return stages
        case Mode.DEPTH:
            rounds = rounds_of(min(max(depth, 1), stages), stages)
            return -(-stages // rounds)
        case Mode.AUTO:
            raise ValueError("auto is a choice among depths, not one of them")
