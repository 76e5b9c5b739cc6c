"""The paces in which a recording is verified."""

from __future__ import annotations

from collections.abc import Iterable

from edgeflow.contract import Pace, StageProgram
from edgeflow.scheduler.pace import pace_of, paces_of, served_pace
from edgeflow_client.types import Mode


def paces_by_mode(modes: Iterable[Mode], program: StageProgram) -> dict[str, Pace]:
    """The paces of these modes by name: of depth all between serial and pipelined, of auto all that it may choose."""
    every, found = paces_of(program), dict[str, Pace]()
    for mode in modes:
        if mode is Mode.AUTO:
            found |= every
        elif mode is Mode.DEPTH:
            found |= {name: pace for name, pace in every.items() if 1 < pace.depth < program.passes}
        else:
            found[mode.value] = served_pace(pace_of(mode, program.passes), program)
    return found
