"""Chunks from the training network, for its evaluation: Euler steps after the rows that an answer keeps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from edgeflow.lab.demo.flow_training.batches import BatchNormaliser
from edgeflow.lab.demo.flow_training.network import Prefix, TrainedFlowNetwork
from edgeflow.lab.demo.flow_training.tokenizer import prompt_ids
from edgeflow.lab.demo.flow_training.windows import HISTORY, MOST_KEPT
from tests.lab.demo.chunk_episodes import EpisodeFrame, Rows


class FlowSampler:
    """Answers observations with chunks, in batches. Its noise depends on its seed and the calls before."""

    def __init__(
        self,
        network: TrainedFlowNetwork,
        tokenizer: Tokenizer,
        normaliser: BatchNormaliser,
        steps: int,
        *,
        seed: int = 0,
    ) -> None:
        self._network, self._tokenizer, self._normaliser = network.eval(), tokenizer, normaliser
        self._steps = steps
        self._generator = torch.Generator().manual_seed(seed)

    @torch.inference_mode()
    def __call__(self, observations: Sequence[EpisodeFrame]) -> list[Rows]:
        """Chunks `[rows, 7]` in the actions' units."""
        size = self._network.size
        noise = torch.randn(len(observations), size.chunk, size.action, generator=self._generator)
        left, kept = self._kept(observations)
        chunks = integrate(self._network, self._prefix(observations), noise, left, kept, self._steps)
        return list(self._normaliser.actions(chunks).numpy())

    def _prefix(self, observations: Sequence[EpisodeFrame]) -> Prefix:
        ids = [prompt_ids(self._tokenizer, each.instruction) for each in observations]
        longest = max(map(len, ids))
        padded = torch.tensor([each + [0] * (longest - len(each)) for each in ids])
        valid = torch.tensor([[True] * len(each) + [False] * (longest - len(each)) for each in ids])
        frames = torch.from_numpy(np.stack([each.image for each in observations]))
        states = torch.from_numpy(np.stack([each.state for each in observations])).float()
        tokens = self._network.image_tokens(frames).repeat(1, HISTORY, 1)  # no older frames
        return self._network.prefix(tokens, padded, self._normaliser.states(states), valid)

    def _kept(self, observations: Sequence[EpisodeFrame]) -> tuple[Tensor, Tensor]:
        """The rest of the chunks in execution `[B, C, A]`, normalised, and how many of their rows are kept, `[B]`."""
        size = self._network.size
        left = torch.zeros(len(observations), size.chunk, size.action)
        kept = torch.zeros(len(observations), dtype=torch.int64)
        for row, each in enumerate(observations):
            if each.left is not None:
                left[row, : len(each.left)] = self._normaliser.chunks(torch.from_numpy(np.array(each.left)).float())
                kept[row] = min(each.delay, len(each.left), MOST_KEPT)
        return left, kept


def integrate(network: TrainedFlowNetwork, prefix: Prefix, x: Tensor, left: Tensor, kept: Tensor, steps: int) -> Tensor:
    """Integrate from noise `[B, C, A]` at time 1 to chunks at time 0, in equal steps.

    The first `kept` `[B]` rows are those of `left` `[B, C, A]`, at time 0 from the beginning.
    """
    clean = torch.arange(x.shape[1]) < kept[:, None]
    x = torch.where(clean[..., None], left, x)
    for step in range(steps):
        times = torch.where(clean, 0.0, 1.0 - step / steps)
        velocity = network.velocity(prefix, x[:, None], times[:, None])[:, 0]
        x = torch.where(clean[..., None], x, x - velocity / steps)
    return x
