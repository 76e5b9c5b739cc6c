"""The pace of a session: how its frames share passes.

A *tick* takes `rounds` passes: one packed pass (the newest frame's prefill and one decode row for each frame in
flight) and rounds - 1 decode-only passes. A frame leaves after `depth` ticks. Depth 1 is serial decoding (rounds = K),
depth K is the pipeline of ActionFlow section 3.1 (rounds = 1); the depths between trade rate for age.
"""

from __future__ import annotations

from edgeflow.contract import Pace, Speculation, StageProgram
from edgeflow_client.types import Mode


def rounds_of(depth: int, stages: int) -> int:
    """Passes per tick: ceil(K / depth)."""
    return -(-stages // depth)


def depths_of(stages: int) -> tuple[int, ...]:
    """The depths that differ in effect, in ascending order: ceil(K / r) for every r that some depth gives."""
    return tuple(sorted({-(-stages // rounds_of(depth, stages)) for depth in range(1, stages + 1)}))


def paces_of(program: StageProgram) -> dict[str, Pace]:
    """Every pace that mode auto may choose, by name: all depths, and exact drafts where tokens are drafted."""
    names = {program.passes: Mode.PIPELINED.value, 1: Mode.SERIAL.value}
    paces = {names.get(depth, f"depth {depth}"): Pace(depth) for depth in depths_of(program.passes)}
    if program.drafts:
        paces[Mode.SPECULATIVE.value] = auto_pace(program)
    return paces


def auto_pace(program: StageProgram) -> Pace:
    """The pace of mode auto without an age limit: exact drafts where tokens are drafted, serial otherwise."""
    return served_pace(Pace(0, Speculation()), program)


def pace_of(mode: Mode, stages: int, depth: int = 0, speculation: Speculation | None = None) -> Pace:
    """The pace of a mode. depth is read for Mode.DEPTH, speculation for Mode.SPECULATIVE, which is serial where K is 1.

    ValueError for Mode.AUTO, which needs a program (`auto_pace`), and for an age limit a forecast.
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


def served_mode(mode: Mode, pace: Pace, stages: int) -> Mode:
    """The mode in effect: that which auto chose, and serial for speculative where there is nothing to draft."""
    if mode is Mode.AUTO and pace.speculation is not None:
        return Mode.SPECULATIVE
    if mode is Mode.AUTO:
        return {stages: Mode.PIPELINED, 1: Mode.SERIAL}.get(pace.depth, Mode.DEPTH)
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
