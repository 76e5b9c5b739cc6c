"""Rows of a step in which action and flow time are mixed by an MLP, as SmolVLA and π0 have them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from edgeflow.models.checkpoint import Weights
from edgeflow.models.siglip import projection
from edgeflow.policies.flow.embeddings import RowTimes, TimeEmbedding


class TimeMixing:
    """action_in_proj, then action_time_mlp_in and _out over the action's row beside the embedding of its time.

    weights: float32, whatever the dtype of the decoder. width: E' of the rows. dims: A.
    """

    def __init__(self, weights: Weights, width: int, dims: int, periods: tuple[float, float]) -> None:
        self._time = TimeEmbedding(width, periods, weights.device)
        self._action = projection(weights, "action_in_proj", width, dims)
        self._mix = projection(weights, "action_time_mlp_in", width, 2 * width)
        self._out = projection(weights, "action_time_mlp_out", width, width)

    def __call__(self, x: Tensor, time: Tensor, clean: Tensor) -> Tensor:
        """Latent actions [n, H, A], flow times [n], clean rows [n, H] → rows [n, H, E'] float32"""
        times = RowTimes.of(time, clean)
        embedded = self._time(times.values)[times.of_row]
        mixed = self._mix(torch.cat([self._action(x.float()), embedded], dim=-1))
        return self._out(F.silu(mixed))
