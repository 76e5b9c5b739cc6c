"""Cases of a bundle as prepared frames, one per entry of their batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgeflow.engine.flow.frames import FlowFrame, FlowSizes
from edgeflow.lab.verify.bundle import CASES_FILE, TENSORS_FILE, RecordedCase, read_cases
from edgeflow.lab.verify.comparison import CheckResult, compare
from edgeflow.models.checkpoint import read_tensors
from edgeflow.policies.flow.config import MOST_STEPS, MOST_TOKENS, FlowConfig
from edgeflow.policies.flow.network import PrefixedNetwork
from edgeflow.policies.flow.observing import Margin, fitted
from edgeflow.policies.flow.policy import Texts
from edgeflow.text.checkpoint_json import Fields, read_json
from edgeflow_client.errors import CheckpointError

IMAGES, STATE, NOISE = "in.observation.images.", "in.observation.state", "in.noise"
TOKENS, TOKEN_MASK = "in.observation.language.tokens", "in.observation.language.attention_mask"
STATE_RAW = "in.observation.state_raw"
RTC_CASES, RTC_TENSORS = "cases_rtc.json", "expected_rtc.safetensors"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RecordedBatch:
    """A case of B frames."""

    case: RecordedCase
    values: Fields
    """Its entry in cases.json."""
    steps: int
    frames: tuple[FlowFrame, ...]
    images: Tensor
    """[C, B, 3, side, side]: the prepared images of its cameras."""
    tokens: Tensor
    mask: Tensor
    """`tokens` [B, t], `mask` [B, t]: as recorded, with padding."""


def read_recordings(directory: Path, config: FlowConfig, margin: Margin) -> list[RecordedBatch]:
    """Read all cases; CheckpointError names the case and the wrong entry."""
    entries = Fields(CASES_FILE, read_json(directory / CASES_FILE)).objects("cases")
    cases = read_cases(directory)
    return [_recording(case, entry, config, margin) for case, entry in zip(cases, entries, strict=True)]


def read_continuations(directory: Path) -> list[tuple[Fields, dict[str, Tensor]]]:
    """Entries and tensors of the cases of real-time chunking; empty if the bundle has none."""
    if not (directory / RTC_CASES).is_file():
        return []
    if not (directory / RTC_TENSORS).is_file():
        raise CheckpointError(f"{directory} has no {RTC_TENSORS}: name the directory of a bundle")
    entries = Fields(RTC_CASES, read_json(directory / RTC_CASES)).objects("cases")
    tensors = read_tensors(directory / RTC_TENSORS)
    found = []
    for entry in entries:
        prefix = entry.text("name") + "."
        own = {name.removeprefix(prefix): each for name, each in tensors.items() if name.startswith(prefix)}
        found.append((entry, own))
    return found


def stored(tensors: dict[str, Tensor] | RecordedCase, where: str, name: str, shape: Sequence[int | None]) -> Tensor:
    """A stored tensor with a shape (None: any length above 0); CheckpointError for another shape."""
    own = tensors.tensors if isinstance(tensors, RecordedCase) else tensors
    found = own.get(name)
    lengths = () if found is None else tuple(found.shape)
    fits = len(lengths) == len(shape) and all(want in (None, have) for have, want in zip(lengths, shape, strict=False))
    if found is None or not fits or 0 in lengths:
        what = "is missing" if found is None else f"has shape {list(lengths)}"
        raise CheckpointError(f"{TENSORS_FILE}: {where}.{name} {what}: name the directory of a bundle")
    return found


def _recording(case: RecordedCase, values: Fields, config: FlowConfig, margin: Margin) -> RecordedBatch:
    noise = stored(case, case.name, NOISE, (None, config.chunk, config.dims)).float()
    batch = len(noise)
    tokens, mask = (stored(case, case.name, name, (batch, None)) for name in (TOKENS, TOKEN_MASK))
    if tokens.shape != mask.shape or tokens.shape[1] > MOST_TOKENS or int(tokens.min()) < 0:
        raise CheckpointError(f"{TENSORS_FILE}: tokens and mask of {case.name} do not fit: copy the bundle again")
    mask = mask.bool()
    states = stored(case, case.name, STATE, (batch, config.state)).float()
    padded = torch.nn.functional.pad(states, (0, config.state_dims - config.state))
    images = _images(case, batch, config, margin)
    frames = tuple(
        FlowFrame(
            pixel_values=images[:, index],
            prompt_ids=tuple(tokens[index][mask[index]].tolist()),
            state=padded[index],
            noise=noise[index][None],
        )
        for index in range(batch)
    )
    return RecordedBatch(
        case=case,
        values=values,
        steps=_steps(case, values, config),
        frames=frames,
        images=images,
        tokens=tokens,
        mask=mask,
    )


def _images(case: RecordedCase, batch: int, config: FlowConfig, margin: Margin) -> Tensor:
    """[C, B, 3, side, side] of the case's cameras, in the order of the config."""
    names = [camera.name for camera in config.cameras if f"in.{camera.name}" in case.tensors]
    if not names:
        raise CheckpointError(f"{TENSORS_FILE}: {case.name} has no {IMAGES}…: name the directory of a bundle")
    cameras = []
    for name in names:
        raw = stored(case, case.name, f"in.{name}", (batch, 3, None, None)).float()
        cameras.append(torch.stack([fitted(each, (config.side,) * 2, margin) for each in raw]))
    return torch.stack(cameras)


def _steps(case: RecordedCase, values: Fields, config: FlowConfig) -> int:
    recorded = case.tensors.get("mid.timesteps")
    stated = values.size("num_steps") if "num_steps" in values else None
    steps = stated or (config.steps if recorded is None else len(recorded))
    if not 1 <= steps <= MOST_STEPS:
        raise CheckpointError(f"{CASES_FILE}: {case.name} has {steps} steps; served: 1 to {MOST_STEPS}")
    return steps


def retokenised(recording: RecordedBatch, texts: Texts, states: NDArray[np.float32]) -> Tensor:
    """The tokens of a case [B, t], computed again from its tasks and normalised states [B, n], padded as they are
    stored.
    """
    found = recording.tokens.clone()
    tasks = recording.values.texts("task" if "task" in recording.values else "texts")
    if len(tasks) != len(found):
        raise CheckpointError(f"{recording.values.name('task')} has {len(tasks)} entries, expected {len(found)}")
    for row, mask, task, state in zip(found, recording.mask, tasks, states, strict=True):
        ids = torch.tensor(texts.ids(task, state))
        row[mask] = ids if len(ids) == int(mask.sum()) else -1
    return found


Values = Callable[[RecordedBatch, FlowSizes], dict[str, Tensor]]
"""Further values of a recording's frames, by stored name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerances:
    """Absolute tolerances."""

    results: float
    relative: float | None = None
    """Intermediate values may be off by this share of the largest one; None = like results."""

    def compare(self, case: str, name: str, found: Tensor, wanted: Tensor) -> CheckResult:
        """Compare a stored value; integers must be equal."""
        result = compare(case, name.partition(".")[2].replace("_", " "), found, wanted, self.results)
        if not wanted.is_floating_point():
            return replace(result, tolerance=0.0)
        if self.relative is not None and name.startswith("mid.") and wanted.numel():
            return replace(result, tolerance=self.relative * wanted.abs().max().item())
        return result

    def compared(self, case: RecordedCase, found: Mapping[str, Tensor]) -> Iterator[CheckResult]:
        """Compare the values that were recorded."""
        wanted = case.tensors
        return (self.compare(case.name, each, found[each], wanted[each]) for each in found if each in wanted)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedPolicy:
    """A policy to compare with its recording."""

    directory: Path
    config: FlowConfig
    sizes: FlowSizes
    """The sizes of answers, with the checkpoint's number of steps."""
    network: PrefixedNetwork
    margin: Margin
    tolerances: Tolerances
    more: Values
    """Values that only this family has."""


def unknown(case: str, names: Iterable[str]) -> Iterator[CheckResult]:
    """Stored values that were not compared with anything."""
    for name in sorted(names):
        yield CheckResult(case, f"unknown {name}", math.inf, 0.0)
