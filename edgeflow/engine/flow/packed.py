"""Stages of a flow policy as one packed pass: prefix rows and step rows of any frames share each product."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from edgeflow.engine.flow.frames import FlowSizes
from edgeflow.engine.flow.policy import FlowStages, PrefixInputs, StepInputs
from edgeflow.engine.flow.rows import FlowRows
from edgeflow.kernels.kv.slots import rounded_capacity
from edgeflow.models.grouped import GroupedDecoder
from edgeflow.models.stack_norms import RowTimes


class FlowNetwork(ABC):
    """The networks of a flow policy in torch, as functions over packed rows."""

    decoder: GroupedDecoder

    @property
    def device(self) -> torch.device:
        return self.decoder.device

    @property
    def dtype(self) -> torch.dtype:
        return self.decoder.dtype

    def stages(self, sizes: FlowSizes, slots: int, capacity: int) -> FlowStages:
        return PackedStages(self, sizes, slots, capacity)

    @abstractmethod
    def prefix_rows(self, cameras: int, tokens: int) -> int:
        """Rows of a prefix."""

    @abstractmethod
    def embed_prefix(self, pixel_values: Sequence[Tensor], prompt_ids: Sequence[Tensor], state: Tensor) -> list[Tensor]:
        """Images [C, 3, h, w], token ids [t] and state [B, S] of B frames → B tensors [prefix_rows, E], all on the
        device, without reading anything on the host."""

    @abstractmethod
    def time_table(self, times: Tensor) -> Tensor:
        """Flow times [N + 1] float32 → what steps read of them, computed once: [N + 1, ...] float32"""

    @abstractmethod
    def embed_step(self, x: Tensor, times: RowTimes, state: Tensor) -> tuple[Tensor, RowTimes | None]:
        """Rows of a step of n candidates: x [n, H, A], the flow times of their rows, state [n, S] →
        [n (lead + H), E'], and the condition of the norms where they are adaptive."""

    @abstractmethod
    def velocity(self, hidden: Tensor) -> Tensor:
        """Suffix rows after the final norm [n (lead + H), E'] → v [n, H, A] float32"""


class PackedStages:
    """engine/flow/policy.FlowStages of networks in torch, over a KV store."""

    def __init__(self, network: FlowNetwork, sizes: FlowSizes, slots: int, capacity: int) -> None:
        decoder = network.decoder
        self.kv = decoder.kv_slots(slots, rounded_capacity(capacity))
        self.device, self.kv_bytes, self.capacity = self.kv.data.device, self.kv.nbytes, self.kv.capacity
        self.kinds, self.reads_places = decoder.kinds, decoder.reads_places
        self.prefix_rows = network.prefix_rows
        self.copy_prefix = self.kv.copy_rows
        self._network = network
        self._times = network.time_table(sizes.times.to(self.device))
        self._nothing = torch.empty(0, 1, device=self.device)  # stands for rows that a pass does not have

    def velocity(self, rows: FlowRows, prefixes: PrefixInputs | None, steps: StepInputs | None) -> Tensor | None:
        network, prefix, condition, suffix = self._network, self._nothing, None, self._nothing
        if prefixes is not None:
            prefix = torch.cat(network.embed_prefix(prefixes.pixels, rows.ids, prefixes.state))
        if steps is not None:
            suffix, condition = network.embed_step(steps.x, RowTimes(self._times, steps.times), steps.state)
        hidden = network.decoder.forward(prefix, suffix, rows.layout, self.kv, condition)
        return None if steps is None else network.velocity(hidden)
