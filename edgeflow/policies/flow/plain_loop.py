"""One frame at a time, written out: the prefix, then every Euler step over its slot.

What the engine packs is compared with this loop, and so are recordings of the original implementations.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from edgeflow.engine.flow.policy import FlowFrame, FlowNetwork, FlowSizes
from edgeflow.kernels.kv.layout import PackedLayout, Span
from edgeflow.kernels.kv.sees import Sees
from edgeflow.kernels.kv.slots import KVSlots, rounded_capacity
from edgeflow.models.grouped import CROSS, GroupLayout


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Step:
    """One Euler step of a candidate. rows [R, E']: as they enter the expert; hidden [R, E']: as they leave it.

    x [H, A]: before the step. velocity [H, A]: of the network; used [H, A]: after guidance.
    """

    time: float
    rows: Tensor
    hidden: Tensor
    x: Tensor
    velocity: Tensor
    used: Tensor


class PlainLoop:
    """The answer to one frame. embeddings, hidden [L_P, E]: of its prefix; kv: its keys and values, in slot 0."""

    def __init__(self, network: FlowNetwork, sizes: FlowSizes, frame: FlowFrame, candidate: int = 0) -> None:
        self._network, self._sizes, self._frame = network, sizes, frame
        decoder = network.decoder
        device = decoder.device
        ids = torch.tensor(frame.prompt_ids, dtype=torch.long, device=device)
        self._state = frame.state.to(device)[None]
        (self.embeddings,) = network.embed_prefix([frame.pixel_values.to(device)], [ids], self._state)
        self.length = len(self.embeddings)
        self.kv: KVSlots = decoder.kv_slots(1, rounded_capacity(self.length + sizes.rows))
        nothing = self.embeddings.new_zeros(0, 0)
        self.hidden, _ = decoder.forward_whole(self.embeddings, nothing, self._prefix_layout(), self.kv)
        self.x = frame.noise[candidate].to(device, torch.float32, copy=True)
        self.steps = list(self._denoise())

    def _denoise(self) -> Iterator[Step]:
        guidance, count = self._frame.guidance, self._sizes.steps
        clean = torch.zeros(self._sizes.horizon, dtype=torch.bool, device=self.x.device)
        target = None if guidance is None else guidance.target.to(self.x)
        if guidance is not None:
            clean[: guidance.clean] = True
        for index in range(count):
            time, dt = 1.0 - index / count, -1.0 / count
            if target is not None:
                self.x[clean] = target[clean]
            step = self._step(time, clean)
            used = step.velocity
            if guidance is not None and target is not None and not guidance.clean:
                error = (target - (self.x - time * used)) * guidance.weights.to(self.x)[:, None]
                used = used - gain(time, guidance.most) * error
            yield Step(
                time=time, rows=step.rows, hidden=step.hidden, x=self.x.clone(), velocity=step.velocity, used=used
            )
            self.x = self.x + dt * used
            if target is not None:
                self.x[clean] = target[clean]

    def _step(self, time: float, clean: Tensor) -> Step:
        network, decoder = self._network, self._network.decoder
        t = torch.tensor([time], dtype=torch.float32, device=self.x.device)
        state = self._state[:, : self._sizes.state]
        rows, condition = network.embed_step(self.x[None], t, clean[None], state)
        nothing = self.embeddings[:0]
        hidden = decoder.forward(nothing, rows, self._step_layout(), self.kv, condition)
        velocity = network.velocity(hidden)[0]
        return Step(time=time, rows=rows, hidden=hidden, x=self.x, velocity=velocity, used=velocity)

    def _prefix_layout(self) -> GroupLayout:
        length, closing = self.length, self._sizes.closing
        ranges = torch.zeros(length, 2, 2, dtype=torch.long)
        ranges[: length - closing, 0, 1] = length - closing
        ranges[length - closing :, 0, 1] = length
        return self._layout(Span(0, 0, length), ranges, ranges, prefixes=1)

    def _step_layout(self) -> GroupLayout:
        """Joint layers: the prefix and the rows of the step; cross layers: the prefix alone, positions from 0."""
        sizes, first = self._sizes, self.length
        ranges = torch.zeros(sizes.rows, 2, 2, dtype=torch.long)
        for row in range(sizes.rows):
            lead = row < sizes.lead
            stop = sizes.lead if lead else (row + 1 if sizes.causal else sizes.rows)
            ranges[row] = torch.tensor([[0, first], [first, first + stop]])
        across = torch.zeros_like(ranges)
        across[:, 0, 1] = first
        return self._layout(Span(0, first, sizes.rows), ranges, across, prefixes=0)

    def _layout(self, span: Span, joint: Tensor, cross: Tensor, *, prefixes: int) -> GroupLayout:
        device = self.device
        places = PackedLayout.of([span], device, sees=[Sees(joint)])
        crossing = None
        if CROSS in self._network.decoder.kinds:
            turned = torch.arange(span.length)[None]
            crossing = PackedLayout.of([span], device, turned, sees=[Sees(cross)])
        return GroupLayout(joint=places, cross=crossing, prefixes=prefixes, prefix_rows=span.length if prefixes else 0)

    @property
    def device(self) -> torch.device:
        return self.embeddings.device


def gain(time: float, most: float) -> float:
    """The guidance weight at a flow time."""
    tau = 1.0 - time
    if tau == 0.0:
        return most
    inverse = ((1 - tau) ** 2 + tau**2) / (1 - tau) ** 2
    return min(most, (1 - tau) / tau * inverse)
