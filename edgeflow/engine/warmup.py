"""Proof before readiness: a frame decoded serially and in a full pipeline gives the same finite tokens.

Where passes are replayed, every shape that one session can ask for is recorded on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch

from edgeflow.engine.calibrate import INSTRUCTION
from edgeflow.engine.engine import ROW_STEP, PolicyEngine
from edgeflow.engine.offline import OfflineRun, decode_serially, limits_for
from edgeflow.engine.policy import PreparedFrame
from edgeflow.errors import ConfigError, WorkerError
from edgeflow.scheduler.ring import Shift
from edgeflow.scheduler.scheduler import Scheduler
from edgeflow.types import Mode

FRAMES = 3  # beyond the fill
LARGEST_LOSS = (
    0.2  # of the tokens in half precision: sums in another order may turn a near tie, and all that follows it
)

Progress = Callable[[str, int, int], None]


def warm_up(engine: PolicyEngine, shift: Shift, progress: Progress) -> None:
    """Run and check both modes; WorkerError when the outputs are not finite or not equal."""
    frames = _frames(engine, engine.policy.K + FRAMES, engine.policy.prompt_ids(INSTRUCTION))
    progress("serial", 0, 3)
    reference = [decoded.sampled.token_ids for decoded in decode_serially(engine, frames)]
    progress("pipelined", 1, 3)
    scheduler = Scheduler(limits_for(engine.policy.K, shift=shift))
    results = OfflineRun(engine, scheduler, [Mode.PIPELINED]).decode([frames])[0]
    if not all(decoded.sampled.finite for decoded in results):
        raise WorkerError("the warm-up pass gave logits that are not finite: the checkpoint is damaged")
    found = [decoded.sampled.token_ids for decoded in results]
    allowed = 0.0 if engine.kv.data.dtype == torch.float32 else LARGEST_LOSS
    if np.mean(np.array(found) != np.array(reference)) > allowed:
        raise WorkerError("the warm-up pass gave other tokens when pipelined than when serial")
    progress("timing", 2, 3)


def record_passes(engine: PolicyEngine, shift: Shift, progress: Progress, *, required: bool) -> str:
    """Record what one session may ask for, whatever its depth, arrivals and instruction; what to tell at start.

    required: ConfigError where passes cannot be recorded; else the engine runs them eagerly.
    """
    if engine.graphs is None:
        return ""
    try:
        lengths = list(_prompt_lengths(engine))
        for index, length in enumerate(lengths):
            progress("graphs", index, len(lengths))
            _drive(engine, shift, length)
    except (ConfigError, RuntimeError) as error:
        if required:
            raise ConfigError(f"graphs: {error}") from error
        engine.graphs = None
        return f"no graphs: {error}"
    return f"{len(engine.graphs)} graphs"


def _prompt_lengths(engine: PolicyEngine) -> Iterator[int]:
    """Tokens of a prompt for every number of rows that a prefill is padded to, shortest first."""
    image_tokens = engine.policy.image_tokens
    longest = engine.capacity - engine.policy.K
    for rows in range(image_tokens + 1, longest + 1):
        if rows % ROW_STEP == 0 or rows == longest:
            yield rows - image_tokens


def _drive(engine: PolicyEngine, shift: Shift, prompt_tokens: int) -> None:
    """Fill, run full and drain; where slots are copied, also with every gap behind the oldest and every short fill."""
    stages = engine.policy.K
    patterns = [[0] * (stages + 1)]
    if shift is Shift.COPY:
        patterns += [[0] * count for count in range(1, stages)]
        patterns += [[0, gap, *[0] * stages] for gap in range(1, stages)]
    ids = engine.policy.prompt_ids(INSTRUCTION)
    (frame,) = _frames(engine, 1, (ids * (prompt_tokens // len(ids) + 1))[:prompt_tokens])
    for pattern in patterns:
        run = OfflineRun(engine, Scheduler(limits_for(stages, shift=shift)), [Mode.PIPELINED])
        run.decode_arrivals([(gap, frame) for gap in pattern])


def _frames(engine: PolicyEngine, count: int, prompt_ids: tuple[int, ...]) -> list[PreparedFrame]:
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (count, 64, 64, 3), np.uint8)
    return [PreparedFrame(engine.policy.preprocess(image), prompt_ids) for image in images]
