"""How the frames of a session share passes.

A *tick* takes `rounds` passes: one packed pass (the newest frame's prefill and one decode row for each frame in
flight) and rounds - 1 decode-only passes. A frame leaves after `depth` ticks. Depth 1 is serial decoding (rounds = K),
depth K is the pipeline of ActionFlow section 3.1 (rounds = 1); the depths between trade rate for age.
"""

from __future__ import annotations

from edgeflow.types import Mode, Pace, Speculation, StageProgram


def rounds_of(depth: int, stages: int) -> int:
    """Passes per tick: ceil(K / depth)."""
    return -(-stages // depth)


def depths_of(stages: int) -> tuple[int, ...]:
    """The depths that differ in effect, in ascending order: ceil(K / r) for every r that some depth gives."""
    return tuple(sorted({-(-stages // rounds_of(depth, stages)) for depth in range(1, stages + 1)}))


def pace_of(mode: Mode, stages: int, depth: int = 0, speculation: Speculation | None = None) -> Pace:
    """The pace of a mode. depth is read for Mode.DEPTH, speculation for Mode.SPECULATIVE, which is serial where K is 1.

    ValueError for Mode.AUTO, which needs a forecast.
    """
    match mode:
        case Mode.SERIAL:
            return Pace(1)
        case Mode.PIPELINED:
            return Pace(stages)
        case Mode.DEPTH:
            rounds = rounds_of(min(max(depth, 1), stages), stages)
            return Pace(-(-stages // rounds))
        case Mode.SPECULATIVE:
            return Pace(0, speculation or Speculation()) if stages > 1 else Pace(1)
        case Mode.AUTO:
            raise ValueError("auto is a choice among the other modes, not one of them")


def served_mode(mode: Mode, pace: Pace) -> Mode:
    """The mode in effect: speculative is serial where there is nothing to draft (`served_pace`)."""
    return Mode.SERIAL if mode is Mode.SPECULATIVE and pace.speculation is None else mode


def served_pace(pace: Pace, program: StageProgram) -> Pace:
    """The pace in effect: speculative is serial where a program has nothing to draft."""
    return pace if pace.speculation is None or program.drafts else Pace(1)


def pace_text(pace: Pace) -> str:
    """The pace for people."""
    if pace.speculation is None:
        return Mode.SERIAL.value if pace.depth == 1 else f"depth {pace.depth}"
    bins, passes = pace.speculation.tolerance_bins, pace.speculation.max_passes
    tolerance = f"tolerance {bins} bin{'s' * (bins > 1)}" if bins else ""
    limit = f"at most {passes} pass{'es' * (passes > 1)}" if passes else ""
    return ", ".join(filter(None, (Mode.SPECULATIVE.value, tolerance, limit)))
