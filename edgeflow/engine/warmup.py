"""Proof before readiness: a frame decoded serially and in a full pipeline gives the same finite tokens."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from edgeflow.engine.engine import PolicyEngine
from edgeflow.engine.offline import OfflineRun, decode_serially, limits_for
from edgeflow.engine.policy import PreparedFrame
from edgeflow.errors import WorkerError
from edgeflow.scheduler.ring import Shift
from edgeflow.scheduler.scheduler import Scheduler
from edgeflow.types import Mode

INSTRUCTION = "warm up"
WARMUP_FRAMES = 3  # beyond the fill: passes that are timed


@dataclass(frozen=True, slots=True)
class PassTimes:
    """Medians measured at start, nanoseconds."""

    prefill_ns: int
    decode_ns: int
    packed_ns: int


def warm_up(engine: PolicyEngine, shift: Shift, progress: Callable[[str, int, int], None]) -> PassTimes:
    """Run and check both modes; WorkerError when the outputs are not finite or not equal."""
    frames = _frames(engine, engine.policy.K + WARMUP_FRAMES)
    progress("serial", 0, 2)
    reference = [decoded.sampled.token_ids for decoded in decode_serially(engine, frames)]
    progress("pipelined", 1, 2)
    scheduler = Scheduler(limits_for(engine.policy.K, shift=shift))
    results = OfflineRun(engine, scheduler, [Mode.PIPELINED]).decode([frames])[0]
    if not all(decoded.sampled.finite for decoded in results):
        raise WorkerError("the warm-up pass gave logits that are not finite: the checkpoint is damaged")
    if [decoded.sampled.token_ids for decoded in results] != reference:
        raise WorkerError("the warm-up pass gave other tokens when pipelined than when serial")
    progress("timing", 2, 2)
    return measure(engine, frames)


def measure(engine: PolicyEngine, frames: list[PreparedFrame]) -> PassTimes:
    """Pass times of one session: a prefill alone, one decode row, a full packed pass."""
    stages = engine.policy.K
    serial = _timed_passes(engine, Mode.SERIAL, frames)
    packed = _timed_passes(engine, Mode.PIPELINED, frames)
    decodes = [time_ns for index, time_ns in enumerate(serial) if index % stages]
    return PassTimes(
        prefill_ns=round(float(np.median(serial[::stages]))),
        decode_ns=round(float(np.median(decodes or serial))),
        packed_ns=round(float(np.median(packed[stages - 1 : len(frames)]))),
    )


def _timed_passes(engine: PolicyEngine, mode: Mode, frames: list[PreparedFrame]) -> list[int]:
    run = OfflineRun(engine, Scheduler(limits_for(engine.policy.K)), [mode])
    times: list[int] = []
    waiting = list(enumerate(frames, start=1))
    while True:
        if waiting and not run.waiting(0):
            run.offer(0, *waiting.pop(0))
        started_ns = time.perf_counter_ns()
        launched = run.step()
        if launched is None:
            return times
        engine.collect(launched)
        times.append(time.perf_counter_ns() - started_ns)


def _frames(engine: PolicyEngine, count: int) -> list[PreparedFrame]:
    policy = engine.policy
    generator = np.random.default_rng(0)
    ids = policy.prompt_ids(INSTRUCTION)
    images = generator.integers(0, 256, (count, 64, 64, 3), np.uint8)
    return [PreparedFrame(policy.preprocess(image), ids) for image in images]
