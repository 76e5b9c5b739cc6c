"""Training batches: images, several instructions for each, and the expert's answer to each instruction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgeflow.lab.demo.training.actions import scaled
from edgeflow.lab.demo.training.data import Dataset, SceneData
from edgeflow.lab.demo.training.tokenizer import PLACES
from edgeflow.lab.demo.world.layout import COLOURS, HANDLES
from edgeflow.lab.demo.world.task import PHRASES

BRANCHES: Final = 3  # instructions per image
NAMES: Final = (*COLOURS, *PLACES)


@dataclass(frozen=True, slots=True)
class Prompts:
    """Tokenised prompts."""

    shared: Tensor
    """`[S]`, the ids that start every prompt, BOS first."""
    tails: tuple[Tensor, ...]
    """By phrase, one `[7, T]`."""
    named: tuple[int, ...]
    """For each phrase, the column of its tail that holds the name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A batch of frames `[B, 96, 96, 3]` uint8.

    Per handle: actions `[B, 3, 7]` scaled, pixels `[B, 3, 2]`, visible, colours `[B, 3]`. Per branch: ids `[B, N, T]`
    of the instruction, answers `[B, N, 7]`, the action for the named handle, and places `[B, N, 2]`, the pixel of its
    plate.
    """

    frames: Tensor
    actions: Tensor
    pixels: Tensor
    visible: Tensor
    colours: Tensor
    ids: Tensor
    answers: Tensor
    places: Tensor
    named: int
    """The column of the name in ids."""

    def to(self, device: torch.device) -> Self:
        """Move the batch's tensors to a device."""
        names = (field.name for field in fields(self) if field.name != "named")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})


def make_prompts(prompt_ids: Callable[[str], list[int]], *, sharing: bool) -> Prompts:
    """Tokenise every instruction once; all prompts of a phrase have the same length.

    sharing: split off their common beginning.
    """
    ids = [[prompt_ids(phrase.format(name)) for name in NAMES] for phrase in PHRASES]
    everything = [prompt for prompts in ids for prompt in prompts]
    common = 0
    while sharing and len({prompt[common] for prompt in everything}) == 1:
        common += 1
    tails = tuple(torch.tensor([prompt[common:] for prompt in prompts]) for prompts in ids)
    named = tuple(int((tail != tail[0]).any(dim=0).nonzero()[0]) for tail in tails)
    return Prompts(torch.tensor(everything[0][:common]), tails, named)


def draw_batch(data: Dataset, prompts: Prompts, size: int, rng: np.random.Generator) -> Batch:
    """Draw a random batch; all its instructions use one phrase, so that they have the same length."""
    rows = np.sort(rng.integers(len(data), size=size))
    branches = choose_branches(data, rows, rng, BRANCHES)
    return Batch(**batch_fields(data, rows, data.actions[rows], branches=branches, prompts=prompts, rng=rng))


def batch_fields(
    data: SceneData,
    rows: NDArray[np.int64],
    actions: NDArray[np.float32],
    *,
    branches: tuple[NDArray[np.int64], NDArray[np.int64]],
    prompts: Prompts,
    rng: np.random.Generator,
) -> dict[str, Any]:
    """The fields of a Batch of rows `[B]`, with a random phrase.

    actions: `[B, 3, 7]`, not scaled. branches: the handles and names that `choose_branches` returned.
    """
    moves, pixels = scaled(torch.from_numpy(actions)), torch.from_numpy(data.pixels[rows])
    handles, names = (torch.from_numpy(each) for each in branches)
    chosen = torch.arange(len(rows))[:, None], handles
    phrase = int(rng.integers(len(prompts.tails)))
    return {
        "frames": torch.from_numpy(data.images[rows]),
        "actions": moves,
        "pixels": pixels,
        "visible": torch.from_numpy(data.visible[rows]),
        "colours": torch.from_numpy(data.colours[rows]),
        "ids": prompts.tails[phrase][names],
        "answers": moves[chosen],
        "places": pixels[chosen],
        "named": prompts.named[phrase],
    }


def choose_branches(
    data: SceneData, rows: NDArray[np.int64], rng: np.random.Generator, branches: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Choose handles and names `[B, branches]` for rows `[B]`, as `name_handles` does."""
    return name_handles(data.colours[rows], data.visible[rows], data.target[rows], rng, branches)


def name_handles(
    colours: NDArray[np.int64],
    visible: NDArray[np.bool_],
    target: NDArray[np.int64],
    rng: np.random.Generator,
    branches: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Choose handles and names `[B, branches]` for scenes with colours and visible `[B, HANDLES]`, and target `[B]`.

    The first branch names the target, the others any visible handle. Half of the time, a handle at an end of the row
    is named by its position, if the image shows that: all handles are in view, or the handle is the target.
    """
    order = np.argsort(np.where(visible, rng.uniform(size=visible.shape), 2.0), axis=1)
    seen = np.maximum(visible.sum(axis=1, keepdims=True), 1)
    others = np.take_along_axis(order, rng.integers(0, seen, size=(len(target), branches - 1)), axis=1)
    handles = np.concatenate([target[:, None], others], axis=1)
    names = np.take_along_axis(colours, handles, axis=1)
    placed = (handles != HANDLES // 2) & (visible.all(axis=1, keepdims=True) | (handles == target[:, None]))
    by_place = placed & (rng.uniform(size=handles.shape) < 0.5)
    places = len(COLOURS) + (handles != 0).astype(np.int64)
    return handles, np.where(by_place, places, names)
