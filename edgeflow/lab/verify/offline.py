"""Offline runs of recordings: their paces, and frames that arrive at chosen passes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor

from edgeflow.contract import Pace, StageProgram
from edgeflow.engine.control.offline import DecodedFrame, OfflineRun
from edgeflow.engine.policy import OnePassPolicy
from edgeflow.scheduler.pace import pace_of, paces_of, served_pace
from edgeflow_client.types import Mode


def paces_by_mode(modes: Iterable[Mode], program: StageProgram) -> dict[str, Pace]:
    """The paces of these modes by name: for depth all between serial and pipelined, for auto all that it may choose."""
    every, found = paces_of(program), dict[str, Pace]()
    for mode in modes:
        if mode is Mode.AUTO:
            found |= every
        elif mode is Mode.DEPTH:
            found |= {name: pace for name, pace in every.items() if 1 < pace.depth < program.passes}
        else:
            found[mode.value] = served_pace(pace_of(mode, program.passes), program)
    return found


def decode_arrivals(run: OfflineRun, arrivals: Sequence[tuple[int, Any]]) -> list[DecodedFrame]:
    """Decode frames of session 0. Each is offered `arrivals` passes after the start of the one before."""
    results: list[DecodedFrame] = []
    for seq, (passes, frame) in enumerate(arrivals, start=1):
        while passes > 0 or run.waiting(0):
            launched = run.step()
            passes -= 1
            if launched is not None:
                results += run.collect(launched)
        run.offer(0, seq, frame)
    while (launched := run.step()) is not None:
        results += run.collect(launched)
    return results


def run_once(policy: OnePassPolicy, frames: Sequence[Any]) -> Tensor:
    """The answers to frames in one batch, without an executor, as in `OnePassPolicy.run`."""
    batch = policy.batch(frames, max(map(policy.prompt_tokens, frames)))
    return policy.run([each.to(policy.device) for each in batch], on_host=policy.device.type == "cpu")
