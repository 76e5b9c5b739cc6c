"""Proof before readiness: a frame decoded serially and in a full pipeline gives the same finite tokens."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from edgeflow.engine.calibrate import INSTRUCTION
from edgeflow.engine.engine import PolicyEngine
from edgeflow.engine.offline import OfflineRun, decode_serially, limits_for
from edgeflow.engine.policy import PreparedFrame
from edgeflow.errors import WorkerError
from edgeflow.scheduler.ring import Shift
from edgeflow.scheduler.scheduler import Scheduler
from edgeflow.types import Mode

FRAMES = 3  # beyond the fill


def warm_up(engine: PolicyEngine, shift: Shift, progress: Callable[[str, int, int], None]) -> None:
    """Run and check both modes; WorkerError when the outputs are not finite or not equal."""
    frames = _frames(engine, engine.policy.K + FRAMES)
    progress("serial", 0, 3)
    reference = [decoded.sampled.token_ids for decoded in decode_serially(engine, frames)]
    progress("pipelined", 1, 3)
    scheduler = Scheduler(limits_for(engine.policy.K, shift=shift))
    results = OfflineRun(engine, scheduler, [Mode.PIPELINED]).decode([frames])[0]
    if not all(decoded.sampled.finite for decoded in results):
        raise WorkerError("the warm-up pass gave logits that are not finite: the checkpoint is damaged")
    if [decoded.sampled.token_ids for decoded in results] != reference:
        raise WorkerError("the warm-up pass gave other tokens when pipelined than when serial")
    progress("timing", 2, 3)


def _frames(engine: PolicyEngine, count: int) -> list[PreparedFrame]:
    policy = engine.policy
    generator = np.random.default_rng(0)
    ids = policy.prompt_ids(INSTRUCTION)
    images = generator.integers(0, 256, (count, 64, 64, 3), np.uint8)
    return [PreparedFrame(policy.preprocess(image), ids) for image in images]
