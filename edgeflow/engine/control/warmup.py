"""Checks before readiness: every way of sharing passes gives the finite tokens of serial decoding, up to rounding in
16 bits.

Where passes are replayed, every shape that sessions can need is recorded first.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from edgeflow.engine.control.actions import PolicyEngine
from edgeflow.engine.control.agreement import Deviations, deviations, nudged
from edgeflow.engine.control.offline import Decoded, OfflineRun, decode_serially, limits_for
from edgeflow.engine.policy import INSTRUCTION, PreparedFrame
from edgeflow.errors import ConfigError, WorkerError
from edgeflow.scheduler.ring import Shift
from edgeflow.scheduler.scheduler import Scheduler
from edgeflow.types import Mode

FRAMES = 3  # beyond the fill
SHARED = (Mode.PIPELINED, Mode.SPECULATIVE)

Progress = Callable[[str, int, int], None]


def warm_up(engine: PolicyEngine, shift: Shift, progress: Progress) -> None:
    """Run and check the modes; WorkerError when a frame is not answered as it is serially.

    In float32 tokens must be equal. In 16 bits logits may differ by as much as rounding does (agreement.py).
    """
    frames = _frames(engine, engine.policy.K + FRAMES, engine.policy.prompt_ids(INSTRUCTION))
    steps = 1 + len(SHARED)
    progress(Mode.SERIAL.value, 0, steps + 1)
    engine.keep_logits = True
    right = decode_serially(engine, frames)
    allowed = _rounding(engine, frames, right)
    for step, mode in enumerate(SHARED, start=1):
        progress(mode.value, step, steps + 1)
        scheduler = Scheduler(limits_for(engine.policy.K, shift=shift))
        found = OfflineRun(engine, scheduler, [mode]).decode([frames])[0]
        if not all(decoded.sampled.finite for decoded in (*right, *found)):
            raise WorkerError("the warm-up pass gave logits that are not finite: the checkpoint is damaged")
        same = [right[each.sampled.frame.seq - 1] for each in found]  # frames that draft may overtake others
        fault = _objection(same, found, allowed, engine.kv.dtype)
        if fault:
            raise WorkerError(f"the warm-up pass gave other tokens when {mode.value} than when serial: {fault}")
    engine.keep_logits = False
    progress("timing", steps, steps + 1)


def _rounding(engine: PolicyEngine, frames: list[PreparedFrame], right: list[Decoded]) -> Deviations | None:
    """How far rounding moves the logits of these frames; None in float32, where tokens must be equal."""
    dtype = engine.kv.dtype
    return None if dtype == torch.float32 else deviations(right, decode_serially(engine, nudged(frames, dtype)))


def _objection(right: list[Decoded], found: list[Decoded], allowed: Deviations | None, dtype: torch.dtype) -> str:
    """How these frames differ from serial decoding by more than they may; "" where they do not."""
    if allowed is not None:
        return deviations(right, found).objection(allowed, dtype)
    wrong = sum(one.sampled.token_ids != other.sampled.token_ids for one, other in zip(right, found, strict=True))
    return f"{wrong} of {len(found)} frames" if wrong else ""


def record_passes(engine: PolicyEngine, progress: Progress, *, required: bool) -> str:
    """Record what sessions may ask for, whatever their depths, arrivals and instructions; what to tell at start.

    required: ConfigError where passes cannot be recorded; else the engine runs them eagerly.
    """
    if engine.graphs is None or engine.classes is None:
        return ""
    try:
        engine.record_all(engine.classes.all(), lambda done, total: progress("graphs", done, total))
    except (ConfigError, RuntimeError) as error:
        if required:
            raise ConfigError(f"graphs: {error}") from error
        engine.graphs = None
        engine.launch_ahead = 0  # the operator at fault reads places on the host, and drafts decide them
        return f"no graphs: {error}"
    return f"{len(engine.graphs)} graphs"


def _frames(engine: PolicyEngine, count: int, prompt_ids: tuple[int, ...]) -> list[PreparedFrame]:
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (count, 64, 64, 3), np.uint8)
    return [PreparedFrame(engine.policy.preprocess(image), prompt_ids) for image in images]
