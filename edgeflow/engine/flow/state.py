"""The state of each slot of a flow policy on the device, besides its keys and values."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from edgeflow.engine.flow.frames import FlowFrame, FlowSizes


class FlowState:
    """Numbers of S slots, one line of float32 each, which passes read and write by slot.

    x [S, M, H, A]: the latents. target [S, H, A], weights [S, H], most [S], clean [S]: as of Guidance, zeros without
    one. state [S, n]: what every step reads of the robot's state.
    """

    def __init__(self, slots: int, sizes: FlowSizes, device: torch.device) -> None:
        self._lines = torch.zeros(slots, sizes.state_numbers, device=device)
        x, target, self.weights, most, clean, self.state = torch.split(self._lines, list(sizes.state_widths), dim=1)
        self.x = x.view(slots, sizes.candidates, sizes.horizon, sizes.dims)
        self.target = target.view(slots, sizes.horizon, sizes.dims)
        self.most, self.clean = most[:, 0], clean[:, 0]
        self.before_state = sizes.state_numbers - sizes.state

    def enter(self, slots: Tensor, lines: Tensor) -> None:
        """Frames begin in their slots [B]. lines: as of `lines_of`, on the device."""
        self._lines[slots] = lines[:, : self._lines.shape[1]]

    def move(self, source: Tensor, target: Tensor) -> None:
        """Slots `source` enter slots `target` [n], all at once."""
        self._lines[target] = self._lines[source]


def lines_of(frames: Sequence[FlowFrame], sizes: FlowSizes) -> Tensor:
    """The lines of frames that begin [B, ...], on the host; the robot's state last, whether steps read it or not.

    ValueError for noise or a target of another shape.
    """
    return torch.stack([torch.cat(_parts(frame, sizes)) for frame in frames])


def _parts(frame: FlowFrame, sizes: FlowSizes) -> list[Tensor]:
    horizon, dims = sizes.horizon, sizes.dims
    if frame.noise.shape != (sizes.candidates, horizon, dims):
        raise ValueError(f"noise is of shape {list(frame.noise.shape)}, not {[sizes.candidates, horizon, dims]}")
    guidance, noise = frame.guidance, frame.noise.flatten()
    if guidance is None:
        return [noise, noise.new_zeros(horizon * (dims + 1) + 2), frame.state]
    if guidance.target.shape != (horizon, dims) or guidance.weights.shape != (horizon,):
        raise ValueError(f"a target is of shape {list(guidance.target.shape)}, not {[horizon, dims]}")
    bounds = torch.tensor([guidance.most, float(guidance.clean)])
    return [noise, guidance.target.flatten(), guidance.weights, bounds, frame.state]
