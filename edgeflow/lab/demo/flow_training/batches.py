"""Training batches: images, several instructions for each, and the expert's chunk for each instruction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from edgeflow.lab.demo.flow_training.chunks import ChunkLabels, Spread
from edgeflow.lab.demo.flow_training.data import FlowDataset
from edgeflow.lab.demo.flow_training.layers import FlowSize
from edgeflow.lab.demo.training.batches import Batch, Prompts, batch_fields, choose_branches

EPS: Final = 1e-8  # added to a deviation before it divides, as published


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowBatch(Batch):
    """A batch whose answers are whole motions to the grasp, each in one row.

    With states `[B, S]` and, per branch, chunks `[B, N, C, A]`, normalised and padded.
    """

    states: Tensor
    chunks: Tensor


@dataclass(frozen=True, slots=True)
class BatchNormaliser:
    """MEAN_STD normalisation of states and actions, and padding to the network's widths."""

    size: FlowSize
    state: Spread
    action: Spread

    @classmethod
    def of(cls, size: FlowSize, data: FlowDataset, labels: ChunkLabels, states: NDArray[np.float32]) -> BatchNormaliser:
        """From the visible handles' chunks, and states `[N, STATE_DIM]` of windows."""
        return cls(size, Spread.of(states), Spread.of(labels.chunks[data.visible]))

    def states(self, rows: Tensor) -> Tensor:
        """Normalised and padded `[..., S]` from `[..., 24]`, or from a single frame's `[..., 7]`."""
        numbers = F.pad(rows, (0, len(self.state.mean) - rows.shape[-1]))  # no older frames and no delay
        return F.pad(_normalised(numbers, self.state), (0, self.size.state - numbers.shape[-1]))

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


def draw_flow_batch(
    data: FlowDataset,
    labels: ChunkLabels,
    *,
    normaliser: BatchNormaliser,
    prompts: Prompts,
    shape: tuple[int, int],
    rng: np.random.Generator,
) -> FlowBatch:
    """A random batch of shape (frames, instructions per frame); all its instructions use one phrase."""
    size, branches = shape
    rows = np.sort(rng.integers(len(data), size=size))
    handles, names = choose_branches(data, rows, rng, branches)
    return FlowBatch(
        **batch_fields(data, rows, labels.goals[rows], branches=(handles, names), prompts=prompts, rng=rng),
        states=normaliser.states(torch.from_numpy(labels.states[rows])),
        chunks=normaliser.chunks(torch.from_numpy(labels.chunks[rows[:, None], handles])),
    )
