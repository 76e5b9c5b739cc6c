"""Checks before readiness: a full pipeline gives the finite tokens of serial decoding, up to rounding in 16 bits.

Where passes are replayed, every shape that one session can need is recorded first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch

from edgeflow.engine.agreement import deviations, nudged
from edgeflow.engine.engine import PolicyEngine
from edgeflow.engine.offline import Decoded, OfflineRun, decode_serially, limits_for
from edgeflow.engine.padding import ROW_STEP
from edgeflow.engine.policy import INSTRUCTION, PreparedFrame
from edgeflow.errors import ConfigError, WorkerError
from edgeflow.scheduler.ring import Shift
from edgeflow.scheduler.scheduler import Scheduler
from edgeflow.types import Mode

FRAMES = 3  # beyond the fill

Progress = Callable[[str, int, int], None]


def warm_up(engine: PolicyEngine, shift: Shift, progress: Progress) -> None:
    """Run and check both modes; WorkerError when a pipelined frame is not the serial one.

    In float32 tokens must be equal. In 16 bits logits may differ by as much as rounding does (engine/agreement.py).
    """
    frames = _frames(engine, engine.policy.K + FRAMES, engine.policy.prompt_ids(INSTRUCTION))
    progress("serial", 0, 3)
    engine.keep_logits = True
    right = decode_serially(engine, frames)
    progress("pipelined", 1, 3)
    scheduler = Scheduler(limits_for(engine.policy.K, shift=shift))
    found = OfflineRun(engine, scheduler, [Mode.PIPELINED]).decode([frames])[0]
    if not all(decoded.sampled.finite for decoded in (*right, *found)):
        raise WorkerError("the warm-up pass gave logits that are not finite: the checkpoint is damaged")
    fault = _objection(engine, frames, right, found)
    engine.keep_logits = False
    if fault:
        raise WorkerError(f"the warm-up pass gave other tokens when pipelined than when serial: {fault}")
    progress("timing", 2, 3)


def _objection(engine: PolicyEngine, frames: list[PreparedFrame], right: list[Decoded], found: list[Decoded]) -> str:
    """How the pipeline differs from serial decoding by more than it may; "" where it does not."""
    dtype = engine.kv.data.dtype
    if dtype == torch.float32:
        pairs = zip(right, found, strict=True)
        wrong = sum(one.sampled.token_ids != other.sampled.token_ids for one, other in pairs)
        return f"{wrong} of {len(found)} frames" if wrong else ""
    rounding = deviations(right, decode_serially(engine, nudged(frames, dtype)))
    return deviations(right, found).objection(rounding, dtype)


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
    """Tokens of prompts that give every padded prefill, whatever decode rows are beside it; shortest first.

    A prefill of a multiple of ROW_STEP rows is padded by nothing alone and by most beside any decode rows.
    """
    image_tokens = engine.policy.image_tokens
    shortest, longest = image_tokens + 1, engine.capacity - engine.policy.K
    for rows in range(shortest, longest + 1):
        if rows % ROW_STEP == 0 or rows in (shortest, longest):
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
