"""The same networks as the engine serves them: packed rows over KV slots, by torch."""

from __future__ import annotations

import torch
from torch import Tensor

from edgeflow.engine.flow.frames import RowTimes
from edgeflow.engine.flow.packed import FlowLayouts, FlowPlaces, PrefixSegment, StepSegment
from edgeflow.engine.flow.policy import FlowNetwork
from edgeflow.engine.placement import operator_table
from edgeflow.engine.policy import Placement
from edgeflow.kernels.kv.slots import rounded_capacity
from edgeflow.lab.gpu.subjects.random_flow import FlowShape

CPU = torch.device("cpu")


def served_network(shape: FlowShape, dtype: torch.dtype) -> FlowNetwork:
    """The network of a shape with the operators that serve it on this CPU."""
    return shape.network(Placement(dtype=dtype, device=CPU, table=operator_table(None, "float", CPU, dtype)))


class EngineSide:
    """A network over its slots, one for each frame in flight and one for the newest. frames: in flight."""

    def __init__(self, network: FlowNetwork, shape: FlowShape, frames: int) -> None:
        self._network, self._shape, self._frames = network, shape, frames
        decoder = network.decoder
        self._kv = decoder.kv_slots(frames + 1, rounded_capacity(shape.prefix + shape.sizes.rows))
        self._layouts = FlowLayouts(shape.sizes, decoder.kinds, CPU)
        self._nothing = torch.empty(0, 1)
        self._state = torch.zeros(1, shape.config.flow.state_dims)
        self._ids = torch.zeros(shape.text, dtype=torch.long)

    @torch.inference_mode()
    def towers(self, pixels: Tensor) -> None:
        """The rows of a frame's images, text and state."""
        self._network.embed_prefix([pixels], [self._ids], self._state)

    @torch.inference_mode()
    def prefill(self, hidden: Tensor, slot: int = 0) -> None:
        """Rows of a prefix [P, E]; their keys and values enter a slot."""
        self._pass(hidden, None, self._places(slot, ()))

    @torch.inference_mode()
    def step(self, x: Tensor) -> Tensor:
        """x [n, H, A] of the frames in the first n slots → velocity [n, H, A], all at flow time 1"""
        return self._pass(None, x, self._places(None, range(len(x))))

    @torch.inference_mode()
    def tick(self, hidden: Tensor, x: Tensor) -> Tensor:
        """The prefix of the newest frame and a step of each one in flight, in one pass."""
        return self._pass(hidden, x, self._places(self._frames, range(len(x))))

    def keys(self, layer: int) -> Tensor:
        """Keys of the first slot's prefix [P, KH, D]."""
        keys: Tensor = self._kv.layer(layer).keys[0, : self._shape.prefix]
        return keys

    def _places(self, begins: int | None, steps: range | tuple[()]) -> FlowPlaces:
        rows = self._shape.prefix
        begin = [] if begins is None else [PrefixSegment(slot=begins, rows=rows)]
        stepping = [StepSegment(slot=slot, prefix=rows, step=1) for slot in steps]
        return self._layouts.of(begin, stepping, [[]] * len(begin))

    def _pass(self, hidden: Tensor | None, x: Tensor | None, places: FlowPlaces) -> Tensor:
        network, prefix = self._network, self._nothing if hidden is None else hidden
        if x is None:
            return network.decoder.forward(prefix, self._nothing, places.rows, self._kv)
        count, horizon = x.shape[:2]
        times = RowTimes.of(torch.ones(count), torch.zeros(count, horizon, dtype=torch.bool))
        rows, condition = network.embed_step(x, times, self._state.expand(count, -1))
        return network.velocity(network.decoder.forward(prefix, rows, places.rows, self._kv, condition))
