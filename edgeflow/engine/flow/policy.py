"""The interface between the flow engine and policies whose answers are denoised: a prefix once, then Euler steps of an
action expert over its slot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgeflow.contract import Observation
from edgeflow.engine.flow.frames import FlowFrame, FlowSizes, RowTimes
from edgeflow.engine.flow.guidance import RTCSettings
from edgeflow.engine.flow.stages import FlowStages
from edgeflow.engine.policy import Policy
from edgeflow.models.grouped import GroupedDecoder
from edgeflow.models.stack_norms import Condition


class FlowNetwork(Protocol):
    """The networks of a flow policy, as functions over packed rows."""

    @property
    def decoder(self) -> GroupedDecoder: ...

    def prefix_rows(self, frame: FlowFrame) -> int:
        """Rows of a frame's prefix."""
        ...

    def embed_prefix(self, pixel_values: Sequence[Tensor], prompt_ids: Sequence[Tensor], state: Tensor) -> list[Tensor]:
        """Images [C, 3, h, w], token ids [t] and state [B, S] of B frames → B tensors [prefix_rows, E], all on the
        device, without reading anything on the host."""
        ...

    def embed_step(self, x: Tensor, times: RowTimes, state: Tensor) -> tuple[Tensor, Condition | None]:
        """Rows of a step of n candidates: x [n, H, A], the flow times of their rows, state [n, S] →
        [n (lead + H), E'], and the condition of the norms where they are adaptive."""
        ...

    def velocity(self, hidden: Tensor) -> Tensor:
        """Suffix rows after the final norm [n (lead + H), E'] → v [n, H, A] float32"""
        ...


class FlowPolicy(Policy, Protocol):
    """A policy that denoises chunks of actions."""

    sizes: FlowSizes
    device: torch.device
    dtype: torch.dtype

    @property
    def rtc(self) -> RTCSettings | None:
        """How answers continue the chunk being played; None where they cannot."""
        ...

    def stages(self, slots: int, capacity: int) -> FlowStages:
        """Its networks over so many slots. capacity: positions of a slot, prefix and step."""
        ...

    def prepare(self, observation: Observation) -> FlowFrame:
        """The prepared inputs of a frame; its noise follows from the policy's seed and the frame's stamp."""
        ...

    def actions(self, values: NDArray[np.float64], unnorm_key: str | None = None) -> NDArray[np.float64]:
        """Normalised [H, A] → [horizon of the schema, D] in the schema's units."""
        ...

    def normalised(self, actions: NDArray[np.float64]) -> NDArray[np.float64]:
        """[n, D] in the schema's units → normalised [n, D]; not finite where a dimension has no way back."""
        ...
