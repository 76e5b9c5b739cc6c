"""Training batches: images, several instructions for each, and the expert's chunk for each instruction."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from edgeflow.lab.demo.flow_training.chunks import Labels, Spread, draw_continued
from edgeflow.lab.demo.flow_training.data import FlowDataset
from edgeflow.lab.demo.flow_training.layers import FlowSize
from edgeflow.lab.demo.flow_training.tokenizer import prompt_ids
from edgeflow.lab.demo.training.actions import scaled
from edgeflow.lab.demo.training.batches import NAMES, choose_branches
from edgeflow.lab.demo.world.task import PHRASES

EPS: Final = 1e-8  # added to a deviation before it divides, as published


@dataclass(frozen=True, slots=True)
class Prompts:
    """Tokenised prompts by phrase, each `[7, T]`, and the column of each that holds the name."""

    ids: tuple[Tensor, ...]
    named: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A batch of frames `[B, 96, 96, 3]` uint8, and states `[B, S]` normalised and padded.

    Per handle, for learning to see: actions `[B, 3, 7]` scaled, pixels `[B, 3, 2]`, visible, colours `[B, 3]`. Per
    branch: ids `[B, N, T]`, chunks `[B, N, C, A]` normalised and padded, kept `[B, N]`, how many of their first rows
    are those of a chunk before, goals `[B, N, 7]` scaled, places `[B, N, 2]`, the pixel of the named handle's plate.
    named: the column of the name in ids.
    """

    frames: Tensor
    states: Tensor
    actions: Tensor
    pixels: Tensor
    visible: Tensor
    colours: Tensor
    ids: Tensor
    chunks: Tensor
    kept: Tensor
    goals: Tensor
    places: Tensor
    named: int

    def to(self, device: torch.device) -> Batch:
        """Move the batch's tensors to a device."""
        tensors = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "named"}
        return Batch(named=self.named, **{name: tensor.to(device) for name, tensor in tensors.items()})


@dataclass(frozen=True, slots=True)
class Normaliser:
    """MEAN_STD normalisation of states and actions, and padding to the network's widths."""

    size: FlowSize
    state: Spread
    action: Spread

    @classmethod
    def of(cls, size: FlowSize, data: FlowDataset, labels: Labels) -> Normaliser:
        """From the visible handles' chunks."""
        return cls(size, Spread.of(labels.states), Spread.of(labels.chunks[data.visible]))

    def states(self, rows: Tensor) -> Tensor:
        """Normalised and padded `[..., S]` from `[..., 7]`."""
        return F.pad(_normalised(rows, self.state), (0, self.size.state - rows.shape[-1]))

    def chunks(self, rows: Tensor) -> Tensor:
        """Normalised and padded `[..., A]` from `[..., 7]`."""
        return F.pad(_normalised(rows, self.action), (0, self.size.action - rows.shape[-1]))

    def actions(self, rows: Tensor) -> Tensor:
        """Actions `[..., 7]` in their units from the network's `[..., A]`."""
        mean, std = (torch.from_numpy(each).float() for each in (self.action.mean, self.action.std))
        return rows[..., : len(mean)] * std + mean


def _normalised(rows: Tensor, spread: Spread) -> Tensor:
    mean, std = (torch.from_numpy(each).float() for each in (spread.mean, spread.std))
    return (rows - mean) / (std + EPS)


def make_prompts(tokenizer: Tokenizer) -> Prompts:
    """Tokenise every instruction once; all prompts of a phrase have the same length."""
    ids = [torch.tensor([prompt_ids(tokenizer, phrase.format(name)) for name in NAMES]) for phrase in PHRASES]
    return Prompts(tuple(ids), tuple(int((each != each[0]).any(dim=0).nonzero()[0]) for each in ids))


def draw_batch(
    data: FlowDataset,
    labels: Labels,
    *,
    normaliser: Normaliser,
    prompts: Prompts,
    shape: tuple[int, int],
    rng: np.random.Generator,
    continuing: bool = False,
) -> Batch:
    """Draw a random batch of shape (frames, instructions per frame); all its instructions use one phrase.

    continuing: most chunks continue another one.
    """
    size, branches = shape
    rows = np.sort(rng.integers(len(data), size=size))
    colours, visible = data.colours[rows], data.visible[rows]
    handles, names = choose_branches(colours, visible, data.target[rows], rng, branches)
    chunks, kept = labels.chunks[rows[:, None], handles], np.zeros(handles.shape, np.int64)
    if continuing:
        tools, grasps = np.repeat(data.tool[rows], branches, axis=0), data.grasps[rows[:, None], handles]
        apertures = np.repeat(data.aperture[rows], branches)
        drawn, counts = draw_continued(tools, grasps.reshape(-1, 7), apertures, labels.chunks.shape[2], rng)
        chunks, kept = drawn.reshape(chunks.shape), counts.reshape(kept.shape)
    actions, pixels = scaled(torch.from_numpy(labels.goals[rows])), torch.from_numpy(data.pixels[rows])
    chosen = torch.arange(size)[:, None], torch.from_numpy(handles)
    phrase = int(rng.integers(len(prompts.ids)))
    return Batch(
        frames=torch.from_numpy(data.images[rows]),
        states=normaliser.states(torch.from_numpy(labels.states[rows])),
        actions=actions,
        pixels=pixels,
        visible=torch.from_numpy(visible),
        colours=torch.from_numpy(colours),
        ids=prompts.ids[phrase][torch.from_numpy(names)],
        chunks=normaliser.chunks(torch.from_numpy(chunks)),
        kept=torch.from_numpy(kept),
        goals=actions[chosen],
        places=pixels[chosen],
        named=prompts.named[phrase],
    )
