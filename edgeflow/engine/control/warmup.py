"""Checks before readiness: every way of sharing passes gives the finite tokens of serial decoding, up to rounding.

Where passes are replayed, every shape that sessions can need is recorded first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from edgeflow.contract import Observation
from edgeflow.engine.control.actions import PolicyEngine
from edgeflow.engine.control.agreement import Deviations, chunk_objection, deviations, nudged
from edgeflow.engine.control.denoising import FlowEngine
from edgeflow.engine.control.engine import PassEngine
from edgeflow.engine.control.offline import Decoded, OfflineRun, decode_serially, limits_for
from edgeflow.engine.control.one_pass import OnePassEngine
from edgeflow.engine.control.sample_frames import brightened, sample_observations, uncounted
from edgeflow.engine.flow.guidance import Previous
from edgeflow.engine.policy import INSTRUCTION, PreparedFrame
from edgeflow.scheduler.plan import FrameRef, Pass, Segment
from edgeflow.scheduler.ring import Shift
from edgeflow.scheduler.scheduler import Scheduler
from edgeflow_client.errors import ConfigError, WorkerError
from edgeflow_client.types import Mode

FRAMES = 3  # beyond the fill
BATCH = 2
SIDE = 64  # pixels of a camera of any size
SHARED = (Mode.PIPELINED, Mode.SPECULATIVE)
EIGHT_BITS = torch.bfloat16
"""A dtype whose rounding is as coarse as that of a row in 8 bits: a 256th, a 254th of the largest number there."""

Progress = Callable[[str, int, int], None]


def warm_up(engine: PassEngine, shift: Shift, progress: Progress, *, rounds: bool = False) -> None:
    """Run and check the ways of sharing passes; WorkerError when a frame is not answered as it is alone.

    rounds: rows, keys or values are rounded to 8 or 4 bits on the way, whatever the dtype. There float32 sums that
    differ in their last bits, as those of passes of different shapes may, give other numbers.
    """
    with uncounted(engine.policy):
        _warm_up(engine, shift, progress, rounds=rounds)


def _warm_up(engine: PassEngine, shift: Shift, progress: Progress, *, rounds: bool) -> None:
    if isinstance(engine, PolicyEngine):
        _warm_up_modes(engine, shift, progress, rounds=rounds)
    elif isinstance(engine, FlowEngine):
        _warm_up_steps(engine, shift, progress, rounds=rounds)
    elif isinstance(engine, OnePassEngine):
        _warm_up_batches(engine, progress, rounds=rounds)
    else:
        raise TypeError(f"there is no warm-up for {type(engine).__name__}")


def _warm_up_modes(engine: PolicyEngine, shift: Shift, progress: Progress, *, rounds: bool) -> None:
    """In float32 tokens must be equal. Else logits may differ by as much as rounding does (agreement.py)."""
    observations = sample_observations(engine.policy.inputs, engine.policy.K + FRAMES, INSTRUCTION, SIDE)
    frames: list[PreparedFrame] = [engine.policy.prepare(each) for each in observations]
    drafts = any(engine.policy.program(key).drafts for key in engine.policy.unnorm_keys)
    shared = [mode for mode in SHARED if drafts or mode is not Mode.SPECULATIVE]
    steps = 1 + len(shared)
    progress(Mode.SERIAL.value, 0, steps + 1)
    engine.keep_logits = True
    right = decode_serially(engine, frames)
    allowed = _rounding(engine, frames, right, rounds=rounds)
    for step, mode in enumerate(shared, start=1):
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


def _rounding(
    engine: PolicyEngine, frames: list[PreparedFrame], right: list[Decoded], *, rounds: bool
) -> Deviations | None:
    """How far rounding moves the logits of these frames; None where nothing is rounded: tokens must be equal."""
    dtype = EIGHT_BITS if rounds else engine.kv.dtype
    return None if dtype == torch.float32 else deviations(right, decode_serially(engine, nudged(frames, dtype)))


def _objection(right: list[Decoded], found: list[Decoded], allowed: Deviations | None, dtype: torch.dtype) -> str:
    """How these frames differ from serial decoding by more than they may; "" where they do not."""
    if allowed is not None:
        return deviations(right, found).objection(allowed, dtype)
    wrong = sum(one.sampled.token_ids != other.sampled.token_ids for one, other in zip(right, found, strict=True))
    return f"{wrong} of {len(found)} frames" if wrong else ""


def _warm_up_batches(engine: OnePassEngine, progress: Progress, *, rounds: bool) -> None:
    """Frames of several robots in one pass: actions as of each alone, up to the rounding of sums.

    In 16 bits, and where rows are rounded to fewer, actions may differ by a few times what frames do whose pixels are
    moved by one level.
    """
    observations = list(sample_observations(engine.policy.inputs, min(BATCH, engine.sessions), INSTRUCTION, SIDE))
    frames = [engine.policy.prepare(each) for each in observations]
    progress("batches", 0, 2)
    alone = np.concatenate([_chunks(engine, [frame]) for frame in frames])
    progress("batches", 1, 2)
    together = _chunks(engine, frames)

    def brighter() -> NDArray[np.float64]:
        moved = [engine.policy.prepare(each) for each in brightened(observations)]
        return np.concatenate([_chunks(engine, [frame]) for frame in moved])

    coarse = rounds or engine.policy.dtype != torch.float32
    _judge(alone, together, brighter if coarse else None, "in a batch")


def _warm_up_steps(engine: FlowEngine, shift: Shift, progress: Progress, *, rounds: bool) -> None:
    """Frames whose steps share passes: actions as of each alone, up to the rounding of sums.

    One of them continues a chunk, where the policy can.
    """
    observations = list(sample_observations(engine.policy.inputs, FRAMES, INSTRUCTION, SIDE))

    def chunks(mode: Mode, seen: Iterable[Observation]) -> NDArray[np.float64]:
        scheduler = Scheduler(limits_for(engine.policy.sizes.program.passes, shift=shift))
        frames = [engine.policy.prepare(each) for each in seen]
        frames[1] = engine.continued(frames[1], Previous(frames[1].noise[0].double().numpy(), delay=1))
        found = OfflineRun(engine, scheduler, [mode]).decode([frames])[0]
        return np.stack([each.sampled.values for each in found if each.sampled.values is not None])

    progress(Mode.SERIAL.value, 0, 2)
    alone = chunks(Mode.SERIAL, observations)
    progress(Mode.PIPELINED.value, 1, 2)
    together = chunks(Mode.PIPELINED, observations)

    def brighter() -> NDArray[np.float64]:
        return chunks(Mode.SERIAL, brightened(observations))

    coarse = rounds or engine.policy.dtype != torch.float32
    _judge(alone, together, brighter if coarse else None, Mode.PIPELINED.value)


def _judge(
    alone: NDArray[np.float64],
    together: NDArray[np.float64],
    brighter: Callable[[], NDArray[np.float64]] | None,
    how: str,
) -> None:
    """WorkerError where chunks are not finite, or not what they are alone."""
    if not (np.isfinite(alone).all() and np.isfinite(together).all()):
        raise WorkerError("the warm-up pass gave actions that are not finite: the checkpoint is damaged")
    fault = chunk_objection(alone, together, brighter)
    if fault:
        raise WorkerError(f"the warm-up pass gave other actions {how} than alone: {fault}")


def _chunks(engine: OnePassEngine, frames: list[Any]) -> NDArray[np.float64]:
    """[B, horizon, D], normalised, of frames in one pass."""
    refs = [FrameRef(session, 1, 1) for session in range(len(frames))]
    segments = [Segment(sequence=ref, slot=ref.session, start=0, length=1, stage=0) for ref in refs]
    answers, program = engine.answers(), engine.policy.program(engine.policy.unnorm_keys[0])
    for ref in refs:
        answers.begin(ref, program)
    answers.add(engine.collect(engine.launch(Pass(0, tuple(segments)), dict(zip(refs, frames, strict=True)))))
    found = [answers.take(ref).values for ref in refs]
    return np.stack([values for values in found if values is not None])


def record_passes(engine: PassEngine, progress: Progress, *, required: bool) -> str:
    """Record what sessions may ask for, whatever their depths, arrivals and instructions; what to tell at start.

    required: ConfigError where passes cannot be recorded; else the engine runs them eagerly.
    """
    if not isinstance(engine, PolicyEngine) or engine.graphs is None or engine.classes is None:
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
