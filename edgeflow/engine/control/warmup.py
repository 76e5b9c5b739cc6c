"""Checks before readiness: every way of sharing passes gives the finite tokens of serial decoding, up to rounding.

In 16 bits every sum in another order gives another rounding, and a near tie between two tokens another winner. How far
apart correct decodings may be depends on the model, so it is measured: frames whose pixels are moved by one rounding
are decoded serially, after which every later rounding differs too. A pass at fault is further off than that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from statistics import fmean
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray

from edgeflow.contract import Observation
from edgeflow.engine.control.engine import FlowEngine, PassEngine, PolicyEngine
from edgeflow.engine.control.history import first_prompts
from edgeflow.engine.control.offline import DecodedFrame, OfflineRun, decode_serially, limits_for, program_of
from edgeflow.engine.control.samples import brightened, sample_observations, uncounted
from edgeflow.engine.flow.frames import FlowFrame, Previous
from edgeflow.engine.flow.policy import FlowPolicy
from edgeflow.engine.graphs import Progress
from edgeflow.engine.policy import INSTRUCTION, OnePassPolicy, PreparedFrame
from edgeflow.scheduler.scheduler import Scheduler
from edgeflow.scheduler.session import Shift
from edgeflow_client.errors import CheckpointError, WorkerError
from edgeflow_client.types import Mode

CHUNK_TOLERANCE = 1e-4  # of the largest action, which a sum in another order may move
ROUNDING_FACTOR = 4.0  # how much further sharing passes may move actions in 16 bits than a level of the pixels does
MEAN_FACTOR = 1.5
LARGEST_FACTOR = 4.0
"""How much larger than measured rounding a mean, and a single row, may be: rows of 16 bits vary by about 3."""


@dataclass(frozen=True, slots=True)
class Deviations:
    """Root mean square differences of logit rows, in standard deviations of the row."""

    prefills: tuple[float, ...]
    """Deviations of the first token of each frame."""
    decodes: tuple[float, ...]
    """Deviations of later tokens, while all tokens before them are equal."""
    unsampled: int
    """Tokens that do not have the largest of their logits."""
    unfinished: int
    """Rows that are not finite."""

    @property
    def mean(self) -> float:
        """The mean over all rows; 0 without any."""
        return _mean((*self.prefills, *self.decodes))

    def objection(self, rounding: Deviations, dtype: torch.dtype) -> str:
        """The fault, given the deviations that rounding causes; "" when there is none."""
        if self.unfinished:
            return f"{self.unfinished} rows of logits are not finite"
        if self.unsampled:
            return f"{self.unsampled} tokens are not those of the largest logit"
        least = torch.finfo(dtype).eps
        for name, found, known in (
            ("first tokens", self.prefills, rounding.prefills),
            ("later tokens", self.decodes, rounding.decodes or rounding.prefills),
        ):
            allowed = max(_mean(known), least)
            if _mean(found) > MEAN_FACTOR * allowed or max(found, default=0.0) > LARGEST_FACTOR * allowed:
                return (
                    f"logits of {name} are {_mean(found):.2%} of their spread off, at most {max(found):.2%}; "
                    f"rounding accounts for {allowed:.2%}"
                )
        return ""


def chunk_objection(
    right: NDArray[np.float64], found: NDArray[np.float64], brighter: Callable[[], NDArray[np.float64]] | None
) -> str:
    """How chunks differ from those that are right by more than rounding may; "" where they do not.

    brighter: in 16 bits, the chunks of the same frames with every pixel a level brighter.
    """
    allowed = CHUNK_TOLERANCE * max(1.0, float(np.abs(right).max()))
    if brighter is not None:
        allowed = max(allowed, ROUNDING_FACTOR * _spread(brighter() - right))
    off = _spread(found - right)
    return f"{off:.3g} apart, {allowed:.3g} allowed" if off > allowed else ""


def _spread(differences: NDArray[np.float64]) -> float:
    return float(np.sqrt(np.square(differences).mean()))


def nudged(frames: Iterable[PreparedFrame], dtype: torch.dtype) -> list[PreparedFrame]:
    """The frames with every pixel value moved up or down by one rounding of `dtype`."""
    generator = torch.Generator().manual_seed(0)
    step = torch.finfo(dtype).eps / 2
    moved = []
    for frame in frames:
        pixels = frame.pixel_values
        signs = torch.randint(0, 2, pixels.shape, generator=generator) * 2 - 1
        moved.append(PreparedFrame(pixels * (1 + step * signs.to(pixels.device)), frame.prompt_ids))
    return moved


def deviations(right: Sequence[DecodedFrame], found: Sequence[DecodedFrame]) -> Deviations:
    """How far decodings, which must hold logits, are off those that are right.

    The comparison of a frame ends after its first token that differs, for later tokens follow from it.
    """
    rows = [row for pair in zip(right, found, strict=True) for row in _compared(*pair)]
    return Deviations(
        tuple(row.off for row in rows if row.first and row.finite),
        tuple(row.off for row in rows if not row.first and row.finite),
        sum(row.finite and not row.largest for row in rows),
        sum(not row.finite for row in rows),
    )


@dataclass(frozen=True, slots=True)
class _Row:
    first: bool
    off: float
    largest: bool
    finite: bool


def _compared(right: DecodedFrame, found: DecodedFrame) -> Iterable[_Row]:
    ids = zip(right.sampled.token_ids, found.sampled.token_ids, strict=True)
    for index, (wanted_id, found_id) in enumerate(ids):
        wanted, logits = right.logits[index].float(), found.logits[index].float()
        spread = wanted.std().clamp_min(torch.finfo(torch.float32).tiny)
        off = float((logits - wanted).square().mean().sqrt() / spread)
        finite = bool(torch.isfinite(logits).all()) and found.sampled.finite
        yield _Row(index == 0, off, bool(logits[found_id] == logits.max()), finite)
        if wanted_id != found_id:
            return


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else 0.0


DAMAGED = "the checkpoint is damaged, or a plug-in is wrong"
FRAMES = 3  # beyond the fill
BATCH = 2
SIDE = 64  # pixels of a camera of any size
SHARED = (Mode.PIPELINED, Mode.SPECULATIVE)
EIGHT_BITS = torch.bfloat16
"""A dtype whose rounding is as coarse as that of a row in 8 bits: a 256th, a 254th of the largest number there."""


def warm_up(engine: PassEngine, shift: Shift, progress: Progress, *, rounds: bool = False) -> None:
    """Run and check the ways of sharing passes; WorkerError when a frame is answered differently than by itself.

    rounds: rows, keys or values are rounded to 8 or 4 bits on the way, whatever the dtype. There float32 sums that
    differ in their last bits, as those of passes of different shapes may, give other numbers.
    """
    with uncounted(engine.policy):
        if isinstance(engine, PolicyEngine):
            _warm_up_modes(engine, shift, progress, rounds=rounds)
        else:
            _warm_up_chunks(engine, shift, progress, rounds=rounds)


def _warm_up_modes(engine: PolicyEngine, shift: Shift, progress: Progress, *, rounds: bool) -> None:
    observations = sample_observations(engine.policy.inputs, engine.policy.K + FRAMES, INSTRUCTION, SIDE)
    with first_prompts(engine.policy, list(observations)) as frames:
        _warm_up_frames(engine, frames, shift, progress, rounds=rounds)


def _warm_up_frames(
    engine: PolicyEngine, frames: list[PreparedFrame], shift: Shift, progress: Progress, *, rounds: bool
) -> None:
    """In float32 tokens must be equal. Else logits may differ by as much as rounding does."""
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
            raise WorkerError(
                "the warm-up pass gave logits that are not finite: the checkpoint is damaged, or a plug-in is wrong"
            )
        same = [right[each.sampled.frame.seq - 1] for each in found]  # frames that draft may overtake others
        fault = _objection(same, found, allowed, engine.kv.dtype)
        if fault:
            raise WorkerError(f"the warm-up pass gave other tokens when {mode.value} than when serial: {fault}")
    engine.keep_logits = False
    progress("timing", steps, steps + 1)


def _rounding(
    engine: PolicyEngine, frames: list[PreparedFrame], right: list[DecodedFrame], *, rounds: bool
) -> Deviations | None:
    """How far rounding moves the logits of these frames; None where nothing is rounded: tokens must be equal."""
    dtype = EIGHT_BITS if rounds else engine.kv.dtype
    return None if dtype == torch.float32 else deviations(right, decode_serially(engine, nudged(frames, dtype)))


def _objection(
    right: list[DecodedFrame], found: list[DecodedFrame], allowed: Deviations | None, dtype: torch.dtype
) -> str:
    """How these frames differ from serial decoding by more than they may; "" where they do not."""
    if allowed is not None:
        return deviations(right, found).objection(allowed, dtype)
    wrong = sum(one.sampled.token_ids != other.sampled.token_ids for one, other in zip(right, found, strict=True))
    return f"{wrong} of {len(found)} frames" if wrong else ""


def _warm_up_chunks(engine: PassEngine, shift: Shift, progress: Progress, *, rounds: bool) -> None:
    """Frames that share passes, or that run as a whole: actions as those of each by itself, without recordings, up to
    the rounding of sums.

    In 16 bits, and where rows are rounded to fewer, actions may differ by a few times what frames do whose pixels are
    moved by one level.
    """
    policy = cast("OnePassPolicy | FlowPolicy", engine.policy)
    passes, most = program_of(engine).passes, min(BATCH, engine.batch)
    observations = list(sample_observations(policy.inputs, most if passes == 1 else FRAMES, INSTRUCTION, SIDE))

    def chunks(
        seen: Iterable[Observation], mode: Mode = Mode.SERIAL, *, robots: int = 1, whole: bool = False
    ) -> NDArray[np.float64]:
        scheduler = Scheduler(limits_for(passes, sessions=robots, shift=shift), whole=whole)
        with first_prompts(policy, list(seen)) as frames:
            if isinstance(engine, FlowEngine):
                _vary(engine, frames)
            streams = [frames[robot::robots] for robot in range(robots)]
            found = OfflineRun(engine, scheduler, [mode] * robots).decode(streams)
        return np.stack([each.sampled.values for each in chain(*found) if each.sampled.values is not None])

    ways: dict[str, Callable[[], NDArray[np.float64]]] = {}
    if passes == 1:
        ways["in a batch"] = lambda: chunks(observations, robots=most)
    else:
        ways[Mode.PIPELINED.value] = lambda: chunks(observations, Mode.PIPELINED)
    if engine.runs_whole:
        ways["in one pass"] = lambda: chunks(observations, whole=True)
    brighter = None
    if rounds or policy.dtype != torch.float32:
        brighter = lambda: chunks(brightened(observations))  # noqa: E731
    progress(Mode.SERIAL.value, 0, 1 + len(ways))
    with engine.eagerly():
        alone = chunks(observations)
    _check_schemas(policy, alone[0])
    for step, (how, shared) in enumerate(ways.items(), start=1):
        progress(how, step, 1 + len(ways))
        together = shared()
        if not (np.isfinite(alone).all() and np.isfinite(together).all()):
            raise WorkerError(
                "the warm-up pass gave actions that are not finite: the checkpoint is damaged, or a plug-in is wrong"
            )
        fault = chunk_objection(alone, together, brighter)
        if fault:
            raise WorkerError(f"the warm-up pass gave other actions {how} than each frame by itself: {fault}")


def _check_schemas(policy: OnePassPolicy | FlowPolicy, values: NDArray[np.float64]) -> None:
    """Raise CheckpointError unless an answer [M, horizon, A] has the actions that the policy's schemas announce."""
    for key in policy.unnorm_keys:
        schema, actions = policy.action_schema(key), policy.actions(values[0], key)
        wanted = (schema.horizon, len(schema.names))
        if actions.shape != wanted:
            raise CheckpointError(
                f"model: an answer of {type(policy).__name__} has shape {list(actions.shape)}; its action_schema "
                f"announces {list(wanted)}: horizon and numbers of an action"
            )


def _vary(engine: FlowEngine, frames: list[FlowFrame]) -> None:
    """One frame continues a chunk, where the policy can; the last has the longest text, so that kernels for many keys
    are compiled too.
    """
    text = frames[-1].prompt_ids * engine.text_rows
    frames[-1] = replace(frames[-1], prompt_ids=text[: engine.text_rows])
    frames[1] = engine.continued(frames[1], Previous(frames[1].noise[0].double().numpy(), delay=1))
