"""Checks of real-time chunking against recorded answers that continue a chunk: every stored value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from edgeflow.engine.flow.frames import (
    FlowFrame,
    FlowSizes,
    Guidance,
    Previous,
    RTCSettings,
    Schedule,
    gain,
    guidance_of,
)
from edgeflow.lab.verify.comparison import Results
from edgeflow.lab.verify.policies.flow.recorded import (
    NOISE,
    RTC_CASES,
    RecordedBatch,
    RecordedPolicy,
    read_continuations,
    stored,
    unknown,
)
from edgeflow.lab.verify.policies.flow.recorded_runs import FrameRun, Runner
from edgeflow.policies.flow.config import MOST_STEPS, at_most
from edgeflow.text.checkpoint_json import Fields
from edgeflow_client.errors import CheckpointError
from edgeflow_client.types import Mode

PREVIOUS = "in.prev_chunk_left_over"
SCHEDULES = tuple(each.value for each in Schedule)
CHUNK = "out.action_chunk"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Continuation:
    """A case."""

    name: str
    steps: int
    tensors: dict[str, Tensor]
    frames: tuple[FlowFrame, ...]
    guidance: tuple[Guidance | None, ...]
    """Guidance of each frame; None if its answer starts afresh."""


def check_continuations(
    subject: RecordedPolicy, recordings: Sequence[RecordedBatch], runner: Runner, modes: tuple[Mode, ...]
) -> Results:
    """Every comparison of cases_rtc.json, if it exists."""
    results: Results = []
    for values, tensors in read_continuations(subject.directory):
        case = _continuation(subject, recordings, values, tensors)
        names: set[str] = {NOISE, PREVIOUS}
        for way, pace in runner.paces(modes, case.steps).items():
            runs = runner.runs(case.frames, case.steps, pace)
            found = _found(replace(subject.sizes, steps=case.steps), case, runs)
            found[CHUNK] = torch.stack([run.chunk for run in runs])[..., : subject.config.action]
            names |= set(found)
            results += [
                (way, subject.tolerances.compare(case.name, name, value, tensors[name]))
                for name, value in found.items()
                if name in tensors
            ]
        results += [(modes[0].value, each) for each in unknown(case.name, tensors.keys() - names)]
    return results


def _continuation(
    subject: RecordedPolicy, recordings: Sequence[RecordedBatch], values: Fields, tensors: dict[str, Tensor]
) -> _Continuation:
    base = next((each for each in recordings if each.case.name == values.text("base_case")), None)
    if base is None:
        raise CheckpointError(f"{RTC_CASES}: {values.name('base_case')} is not a case of the bundle: copy it again")
    name, batch = values.text("name"), len(base.frames)
    config = subject.config
    noise = stored(tensors, name, NOISE, (batch, config.chunk, config.dims)).float()
    guidance = _guidance(subject.sizes, values, tensors, batch)
    frames = tuple(
        replace(frame, noise=own[None], guidance=drawn)
        for frame, own, drawn in zip(base.frames, noise, guidance, strict=True)
    )
    steps = at_most(values, "num_steps", None, MOST_STEPS)
    return _Continuation(name=name, steps=steps, tensors=tensors, frames=frames, guidance=guidance)


def _guidance(sizes: FlowSizes, values: Fields, tensors: dict[str, Tensor], batch: int) -> tuple[Guidance | None, ...]:
    """The chunk that each frame of a case continues. One chunk may stand for all of them."""
    previous = tensors.get(PREVIOUS)
    if previous is None:
        return (None,) * batch
    rows = previous if previous.dim() == 3 else previous[None]
    if rows.dim() != 3 or len(rows) not in (1, batch):
        raise CheckpointError(f"{RTC_CASES}: {values.text('name')}.{PREVIOUS} has shape {list(previous.shape)}")
    trained = values.choice("mode", ("guided", "trained")) == "trained"
    horizon = "execution_horizon" if "execution_horizon" in values else "config_execution_horizon"
    settings = RTCSettings(
        schedule=Schedule(values.choice("schedule", SCHEDULES)),
        execution_horizon=values.size(horizon),
        max_guidance_weight=values.number("max_guidance_weight", 10.0),
        trained_max_delay=values.size("rtc_training_max_delay") if trained else 0,
    )
    delay = int(values.number("inference_delay", 0))
    return tuple(
        guidance_of(Previous(np.asarray(own, np.float64), delay), settings, sizes)
        for own in rows.expand(batch, -1, -1).numpy()
    )


def _found(sizes: FlowSizes, case: _Continuation, runs: Sequence[FrameRun]) -> dict[str, Tensor]:
    """Values that the engine computed, by stored name: [N, B, …]"""
    times = torch.tensor([sizes.time(step) for step in range(1, sizes.steps + 1)])
    x, velocity, used = (torch.stack([getattr(run, part) for run in runs], dim=1) for part in ("x", "velocity", "used"))
    found = {"mid.x_t": x, "mid.v_t_base": velocity, "mid.v_t": used, "mid.timesteps": _times(case, times, sizes)}
    drawn = [each for each in case.guidance if each is not None]
    if not drawn or drawn[0].clean:
        return found
    target, weights = (torch.stack([getattr(each, part) for each in drawn]) for part in ("target", "weights"))
    reached = x - times[:, None, None, None] * velocity
    gains = torch.tensor([min(gain(sizes.time(step)), drawn[0].most) for step in range(1, sizes.steps + 1)])
    error = (target - reached) * weights[..., None]
    return found | {
        "mid.x1_t": reached,
        "mid.weights": weights[0],
        "mid.guidance_weight": gains,
        "mid.error": error,
        "mid.correction": error,
    }


def _times(case: _Continuation, times: Tensor, sizes: FlowSizes) -> Tensor:
    """Flow times [N, B], or per row [N, B, H] if some rows are clean."""
    clean = case.guidance[0].clean if case.guidance[0] is not None else 0
    of_frames = times[:, None].expand(-1, len(case.frames))
    if not clean:
        return of_frames
    return torch.where(torch.arange(sizes.horizon) < clean, 0.0, of_frames[..., None])
