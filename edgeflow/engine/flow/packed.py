"""Stages of a flow policy as one packed pass: prefix rows and step rows of any frames share each product."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from edgeflow.engine.flow.frames import FlowFrame, FlowSizes, RowTimes
from edgeflow.engine.flow.layout import FlowLayouts, FlowPlaces
from edgeflow.engine.flow.policy import FlowNetwork
from edgeflow.engine.flow.stages import FlowStages, PlacedPass, PrefixInputs, PrefixSegment, StepInputs, StepSegment
from edgeflow.kernels.kv.slots import KVSlots, rounded_capacity
from edgeflow.models.grouped import GroupedDecoder


class PackedStages:
    """engine/flow/stages.FlowStages of networks in torch, over a KV store.

    launch_ahead: 1 on CUDA, unless attention reads places on the host.
    """

    def __init__(self, network: FlowNetwork, sizes: FlowSizes, slots: int, capacity: int) -> None:
        decoder = network.decoder
        self.kv = decoder.kv_slots(slots, rounded_capacity(capacity))
        self.launch_ahead = int(self.device.type == "cuda" and not decoder.reads_places)
        self.layouts = FlowLayouts(sizes, decoder.kinds, self.device)
        self._network = network
        self._nothing = torch.empty(0, 1, device=self.device)

    @property
    def device(self) -> torch.device:
        return self.kv.data.device

    @property
    def kv_bytes(self) -> int:
        return self.kv.nbytes

    def rows(self, frame: FlowFrame) -> int:
        """Rows of a frame's prefix."""
        return self._network.prefix_rows(frame)

    def place(
        self, begin: Sequence[PrefixSegment], steps: Sequence[StepSegment], ids: Sequence[Sequence[int]]
    ) -> PlacedPass:
        """As of FlowStages."""
        return PackedPass(self._network, self.kv, self.layouts.of(begin, steps, ids), self._nothing)

    def copy_prefix(self, source: int, target: int, rows: int) -> None:
        """As of FlowStages."""
        self.kv.copy_rows(source, target, rows)


class PackedPass:
    """engine/flow/stages.PlacedPass. nothing [0, 1]: stands for rows that a pass does not have."""

    def __init__(self, network: FlowNetwork, kv: KVSlots, places: FlowPlaces, nothing: Tensor) -> None:
        self.begin, self.slots, self.steps = places.begin, places.slots, places.steps
        self._network = network
        self._kv = kv
        self._places = places
        self._nothing = nothing

    def run(self, prefixes: PrefixInputs | None, steps: StepInputs | None) -> Tensor | None:
        """As of PlacedPass."""
        network, places, rows = self._network, self._places, self._nothing
        if prefixes is not None:
            rows = torch.cat(network.embed_prefix(prefixes.pixels, places.ids, prefixes.state))
        if steps is None:
            network.decoder.forward(rows, self._nothing, places.rows, self._kv)
            return None
        times = RowTimes.of(steps.time, steps.clean)
        hidden, condition = network.embed_step(steps.x, times, steps.state)
        return network.velocity(network.decoder.forward(rows, hidden, places.rows, self._kv, condition))


class PackedNetwork:
    """The base of networks in torch (engine/flow/policy.FlowNetwork), which run packed."""

    decoder: GroupedDecoder

    @property
    def device(self) -> torch.device:
        return self.decoder.device

    @property
    def dtype(self) -> torch.dtype:
        return self.decoder.dtype

    def stages(self: FlowNetwork, sizes: FlowSizes, slots: int, capacity: int) -> FlowStages:
        """As of engine/flow/stages.StagedNetwork."""
        return PackedStages(self, sizes, slots, capacity)
