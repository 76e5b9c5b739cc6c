"""Recorded frames of a policy, for calibrations and for the report of their errors.

A file of frames is safetensors: the pixels of frame 3 are `3.image.CAMERA`, uint8 [h, w, 3], its state vectors
`3.state.NAME`, float64 [n]. The metadata's entry `frames` is a JSON list, in the order of the frames, of objects with
`episode`, `instruction`, `held_out` and `stamp_ns`. Names are those of the policy. Held-out frames come from episodes
that have no other frames.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from edgeflow.contract import Image, Observation
from edgeflow.lab.outputs import write_tensors
from edgeflow_client.errors import ConfigError

FRAMES = 128
"""Largest number of frames that a search is calibrated on."""
FEWEST_FRAMES = 16
MOST_HELD_OUT = 512
MOST_STORED = 4096
MOST_SIDE = 4096  # pixels
MOST_NUMBERS = 1024  # of a state vector
IMAGE, STATE = "image", "state"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedFrame:
    """An observation of a recorded episode."""

    episode: int
    observation: Observation
    held_out: bool = False
    """True for a frame of the report, not of the search."""


@dataclass(frozen=True, slots=True)
class CalibrationFrames:
    """Observations of different episodes."""

    name: str
    """Name of their source."""
    shown: tuple[Observation, ...]
    """For the search."""
    held_out: tuple[Observation, ...]
    """For the report."""

    @property
    def digest(self) -> str:
        """SHA-256 of all frames: equal for equal sets."""
        found = hashlib.sha256()
        for observation in (*self.shown, *self.held_out):
            found.update(f"{observation.instruction!r} {observation.stamp_ns} {dict(observation.state)!r}".encode())
            for name, image in observation.images.items():
                found.update(f"{name!r} {image.height} {image.width}".encode())
                found.update(image.data)
        return found.hexdigest()


def chosen(name: str, frames: Sequence[RecordedFrame], seed: int) -> CalibrationFrames:
    """The frames of a search and of its report; the seed selects the former if there are more than needed.

    ConfigError if there are too few, or if an episode is in both.
    """
    shown = [each for each in frames if not each.held_out]
    held_out = [each for each in frames if each.held_out]
    if len(shown) < FEWEST_FRAMES or not held_out:
        raise ConfigError(
            f"calibration: {name} has {len(shown)} frames and {len(held_out)} held-out frames; at least "
            f"{FEWEST_FRAMES} (better {FRAMES}) and a held-out one are needed"
        )
    both = {each.episode for each in shown} & {each.episode for each in held_out}
    if both:
        raise ConfigError(
            f"calibration: {name} has held-out frames of episode {min(both)}, which is also used for calibration"
        )
    drawn = shown if len(shown) <= FRAMES else random.Random(seed).sample(shown, FRAMES)
    return CalibrationFrames(
        name,
        tuple(each.observation for each in drawn),
        tuple(each.observation for each in held_out[:MOST_HELD_OUT]),
    )


def check_kept(path: Path, out: Path) -> None:
    """Raise ConfigError for a file that frames cannot be written to. out: the folder of the checkpoint, which stays
    empty.
    """
    folder = path.absolute().parent
    if path.is_dir() or not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
        raise ConfigError(f"keep_frames: {path} must be a file in a folder that can be written to")
    if out.resolve() in path.resolve().parents:
        raise ConfigError(f"keep_frames: {path} is inside the folder of the checkpoint, {out}: give a file elsewhere")


def write_frames(path: Path, frames: Sequence[RecordedFrame]) -> None:
    """Write a file of frames."""
    tensors: dict[str, Tensor] = {}
    for number, frame in enumerate(frames):
        for name, image in frame.observation.images.items():
            pixels = np.frombuffer(image.data, np.uint8).reshape(image.height, image.width, 3)
            tensors[f"{number}.{IMAGE}.{name}"] = torch.from_numpy(pixels.copy())
        for name, values in frame.observation.state.items():
            tensors[f"{number}.{STATE}.{name}"] = torch.tensor(values, dtype=torch.float64)
    facts = [
        {
            "episode": frame.episode,
            "instruction": frame.observation.instruction,
            "held_out": frame.held_out,
            "stamp_ns": frame.observation.stamp_ns,
        }
        for frame in frames
    ]
    write_tensors(path, tensors, {"frames": json.dumps(facts)})


def read_frames(path: Path) -> list[RecordedFrame]:
    """Read a file of frames; ConfigError says what is wrong with it."""
    try:
        with safe_open(path, framework="pt") as file:
            return list(_frames(path, file))
    except (SafetensorError, OSError) as error:
        raise ConfigError(f"calibration: {path} is not a readable safetensors file of frames") from error


def _frames(path: Path, file: Any) -> Iterator[RecordedFrame]:
    facts = _facts(path, file.metadata() or {})
    names: list[list[tuple[str, str]]] = [[] for _ in facts]
    for tensor in file.keys():  # noqa: SIM118 - not a mapping
        number, _, rest = tensor.partition(".")
        kind, _, name = rest.partition(".")
        if not (number.isdigit() and int(number) < len(facts) and kind in (IMAGE, STATE) and name):
            raise ConfigError(
                f"calibration: {path}: tensor {tensor!r} is not one of frames 0 to {len(facts) - 1}: expected "
                f"FRAME.{IMAGE}.CAMERA or FRAME.{STATE}.NAME"
            )
        names[int(number)].append((kind, name))
    for number, (fact, parts) in enumerate(zip(facts, names, strict=True)):
        images = {name: _image(path, file, f"{number}.{kind}.{name}") for kind, name in parts if kind == IMAGE}
        state = {name: _vector(path, file, f"{number}.{kind}.{name}") for kind, name in parts if kind == STATE}
        observation = Observation(
            images=images, state=state, instruction=fact["instruction"], stamp_ns=fact.get("stamp_ns", 0)
        )
        yield RecordedFrame(episode=fact["episode"], held_out=fact["held_out"], observation=observation)


def _facts(path: Path, metadata: dict[str, str]) -> list[dict[str, Any]]:
    """The checked entries of the metadata."""
    try:
        facts = json.loads(metadata.get("frames", ""))
    except ValueError:
        facts = None
    kinds = {"episode": int, "instruction": str, "held_out": bool}
    fits = isinstance(facts, list) and all(
        isinstance(each, dict)
        and all(type(each.get(name)) is kind for name, kind in kinds.items())
        and type(each.get("stamp_ns", 0)) is int
        for each in facts
    )
    if not fits or len(facts) > MOST_STORED:
        raise ConfigError(
            f"calibration: {path}: the metadata's entry frames must be a JSON list of at most {MOST_STORED} objects "
            "with episode (an integer), instruction (text), held_out (true or false) and, optionally, stamp_ns"
        )
    return list(facts)


def _image(path: Path, file: Any, name: str) -> Image:
    part = file.get_slice(name)
    shape = part.get_shape()
    if part.get_dtype() != "U8" or len(shape) != 3 or shape[2] != 3 or not 0 < min(shape) <= max(shape) <= MOST_SIDE:
        raise ConfigError(
            f"calibration: {path}: {name} is {part.get_dtype()} {shape}, expected U8 [h, w, 3] of at most {MOST_SIDE}"
        )
    return Image(shape[0], shape[1], file.get_tensor(name).numpy().tobytes())


def _vector(path: Path, file: Any, name: str) -> tuple[float, ...]:
    part = file.get_slice(name)
    shape = part.get_shape()
    if part.get_dtype() not in ("F32", "F64") or len(shape) != 1 or shape[0] > MOST_NUMBERS:
        raise ConfigError(
            f"calibration: {path}: {name} is {part.get_dtype()} {shape}, expected F32 or F64 [n] of at most "
            f"{MOST_NUMBERS}"
        )
    return tuple(file.get_tensor(name).tolist())
