"""The parts that flow-matching networks share: embeddings of times, steps and prefixes; a decoder of two stacks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from edgeflow.engine.flow.packed import FlowNetwork
from edgeflow.engine.policy import Placement
from edgeflow.kernels.linear import Linear
from edgeflow.kernels.table.operator_table import OperatorTable
from edgeflow.models.checkpoint import Weights
from edgeflow.models.siglip import projection
from edgeflow.models.stack_norms import RowTimes

PREFIX = "model."
"""The prefix of tensor names in all files that LeRobot saves; published base files have none."""


class TimeEmbedding:
    """Sines, then cosines, of flow times: periods are a geometric series from the shortest to the longest. In float64.

    width: numbers of an embedding, an even number.
    """

    def __init__(self, width: int, periods: tuple[float, float], device: torch.device) -> None:
        shortest, longest = periods
        fraction = torch.linspace(0.0, 1.0, width // 2, dtype=torch.float64, device=device)
        self._rates = 1.0 / (shortest * (longest / shortest) ** fraction) * 2 * math.pi

    def __call__(self, time: Tensor) -> Tensor:
        """[n] float32 → [n, width] float32"""
        angles = self._rates * time.double()[:, None]
        return torch.cat([angles.sin(), angles.cos()], dim=1).float()


class TimeMixing:
    """Rows of a step in which action and flow time are mixed by an MLP, as SmolVLA and π0 have them.

    action_in_proj, then action_time_mlp_in and _out over the action's row beside the embedding of its time.
    weights: float32, whatever the dtype of the decoder. width: E' of the rows. dims: A.
    """

    def __init__(
        self,
        weights: Weights,
        width: int,
        dims: int,
        periods: tuple[float, float],
        *,
        table: OperatorTable | None = None,
    ) -> None:
        self.time = TimeEmbedding(width, periods, weights.device)
        self._action = projection(weights, "action_in_proj", width, dims, table=table)
        self._mix = projection(weights, "action_time_mlp_in", width, 2 * width, table=table)
        self._out = projection(weights, "action_time_mlp_out", width, width, table=table)

    def __call__(self, x: Tensor, times: RowTimes) -> Tensor:
        """Latent actions [n, H, A] and the flow times of their rows, embedded by `time` → rows [n, H, E'] float32"""
        mixed = self._mix(torch.cat([self._action(x.float()), times.table[times.of_row]], dim=-1))
        return self._out(F.silu(mixed))


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixEmbedding:
    """Embeds the prefix of a frame: rows of its images, its text, and its state where the prefix has it."""

    image_rows: int
    """Rows of each image."""
    images: Callable[[Tensor], Tensor]
    """Embeds images: [n, 3, h, w] → [n, image_rows, E]."""
    table: Tensor
    """[V, E]: the embeddings of tokens."""
    absent: Tensor | None = None
    """[n, E]: rows after those of the images, the same in every prefix; None = there are none."""
    state: Linear | None = None
    """The projection of a state to a row, in float32; None = the prefix has no state."""

    def rows(self, cameras: int, tokens: int) -> int:
        """The number of rows of a prefix."""
        absent = 0 if self.absent is None else len(self.absent)
        return cameras * self.image_rows + absent + tokens + (self.state is not None)

    def __call__(self, pixel_values: Sequence[Tensor], prompt_ids: Sequence[Tensor], state: Tensor) -> list[Tensor]:
        """Images [C, 3, h, w], token ids [t] and states [B, S] of B frames → B tensors [L_P, E]"""
        dtype, width = self.table.dtype, self.table.shape[1]
        images = self.images(torch.cat(list(pixel_values))).to(dtype)
        of_frames = torch.split(images, [len(each) for each in pixel_values])
        texts = [self.table[ids] * math.sqrt(width) for ids in prompt_ids]
        absent = [] if self.absent is None else [self.absent]
        parts = [[image.flatten(0, 1), *absent, text] for image, text in zip(of_frames, texts, strict=True)]
        if self.state is not None:
            for part, row in zip(parts, self.state(state.float()).to(dtype), strict=True):
                part.append(row[None])
        return [torch.cat(part) for part in parts]


class PrefixedNetwork(FlowNetwork):
    """The networks of a family; its texts are read from the table of the prefix."""

    prefix: PrefixEmbedding

    def prefix_rows(self, cameras: int, tokens: int) -> int:
        """As in FlowNetwork."""
        return self.prefix.rows(cameras, tokens)

    def embed_prefix(self, pixel_values: Sequence[Tensor], prompt_ids: Sequence[Tensor], state: Tensor) -> list[Tensor]:
        """As in FlowNetwork."""
        return self.prefix(pixel_values, prompt_ids, state)


def lerobot_weights(directory: Path, placement: Placement) -> Weights:
    """The weights of a checkpoint by their published names, without the prefix of LeRobot."""
    weights = Weights(directory, placement.dtype, placement.device)
    return weights.under(PREFIX) if any(name.startswith(PREFIX) for name in weights) else weights
