"""Chunks from the training network, for its evaluation: Euler steps, and guidance by the chunk being played."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from edgeflow.demo.chunk_episodes import Observation, Rows
from edgeflow.demo.flow_training.batches import Normaliser
from edgeflow.demo.flow_training.network import FlowNetwork, Prefix
from edgeflow.demo.flow_training.tokenizer import prompt_ids


@dataclass(frozen=True, slots=True)
class Guidance:
    """Guidance of real-time chunking with linear weights. horizon: rows after which the chunk is free. most: its
    largest weight."""

    horizon: int = 10
    most: float = 10.0

    def weights(self, rows: int, left: int, delay: int) -> Tensor:
        """Weights `[rows]`: 1 for the first `delay` rows, then falling to 0 at the horizon or where nothing is left."""
        horizon = min(self.horizon, left)
        certain = min(delay, horizon)
        ramp = torch.linspace(1.0, 0.0, horizon - certain + 2)[1:-1]
        return torch.cat([torch.ones(certain), ramp, torch.zeros(rows - horizon)])

    def strength(self, time: float) -> float:
        """How strongly the velocity is turned at a time from 1 (noise) to 0."""
        done = 1.0 - time
        if done == 0.0:
            return self.most
        return min(self.most, time / done * (time**2 + done**2) / time**2)


@dataclass(frozen=True, slots=True, eq=False)
class Guide:
    """Guidance of a batch. left: the rest of the chunks being played `[B, C, A]`, normalised and padded with 0.

    weights: of its rows, `[B, C]`.
    """

    guidance: Guidance
    left: Tensor
    weights: Tensor

    def pull(self, clean: Tensor, time: float) -> Tensor:
        """The change of the velocity at a time, from the clean chunks `[B, C, A]` that the velocity leads to."""
        return self.guidance.strength(time) * self.weights[..., None] * (self.left - clean)


class FlowSampler:
    """Answers observations with chunks, in batches. Its noise depends on its seed and the calls before."""

    def __init__(
        self,
        network: FlowNetwork,
        tokenizer: Tokenizer,
        normaliser: Normaliser,
        steps: int,
        *,
        guidance: Guidance | None = None,
        seed: int = 0,
    ) -> None:
        self._network, self._tokenizer, self._normaliser = network.eval(), tokenizer, normaliser
        self._steps, self._guidance = steps, guidance or Guidance()
        self._generator = torch.Generator().manual_seed(seed)

    @torch.inference_mode()
    def __call__(self, observations: Sequence[Observation]) -> list[Rows]:
        """Chunks `[rows, 7]` in the actions' units."""
        size = self._network.size
        noise = torch.randn(len(observations), size.chunk, size.action, generator=self._generator)
        guide = self._guide(observations)
        chunks = integrate(self._network, self._prefix(observations), noise, self._steps, guide)
        return list(self._normaliser.actions(chunks).numpy())

    def _prefix(self, observations: Sequence[Observation]) -> Prefix:
        ids = [prompt_ids(self._tokenizer, each.instruction) for each in observations]
        longest = max(map(len, ids))
        padded = torch.tensor([each + [0] * (longest - len(each)) for each in ids])
        valid = torch.tensor([[True] * len(each) + [False] * (longest - len(each)) for each in ids])
        frames = torch.from_numpy(np.stack([each.image for each in observations]))
        states = torch.from_numpy(np.stack([each.state for each in observations])).float()
        tokens = self._network.image_tokens(frames)
        return self._network.prefix(tokens, padded, self._normaliser.states(states), valid)

    def _guide(self, observations: Sequence[Observation]) -> Guide:
        size = self._network.size
        left = torch.zeros(len(observations), size.chunk, size.action)
        weights = torch.zeros(len(observations), size.chunk)
        for row, each in enumerate(observations):
            if each.left is not None:
                left[row, : len(each.left)] = self._normaliser.chunks(torch.from_numpy(np.array(each.left)).float())
                weights[row] = self._guidance.weights(size.chunk, len(each.left), each.delay)
        return Guide(self._guidance, left, weights)


def integrate(network: FlowNetwork, prefix: Prefix, x: Tensor, steps: int, guide: Guide) -> Tensor:
    """Integrate from noise `[B, C, A]` at time 1 to chunks at time 0, in equal steps."""
    for step in range(steps):
        time = 1.0 - step / steps
        velocity = network.velocity(prefix, x[:, None], torch.full((len(x), 1), time))[:, 0]
        clean = x - time * velocity
        x = x - (velocity - guide.pull(clean, time)) / steps
    return x
