"""The interfaces of flow policies: a prefix once, then Euler steps of an action expert over its KV slot.

The program (engine/flow/program.py) keeps the latents, guides them and integrates them, and asks the stages for
velocities. The stages keep the prefixes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgeflow.contract import Observation
from edgeflow.engine.flow.frames import FlowSizes, RTCSettings
from edgeflow.engine.flow.rows import FlowRows
from edgeflow.engine.policy import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixInputs:
    """The inputs of B frames that begin, on the device. pixels [C, 3, h, w] of each; state [B, S]."""

    pixels: Sequence[Tensor]
    state: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInputs:
    """The inputs of n frames that step, M candidates of each one after the other, on the device.

    x [n M, H, A]; times [n M, H] int64: the index of each row's flow time in `FlowSizes.times`; state [n M, S'].
    """

    x: Tensor
    times: Tensor
    state: Tensor


class FlowStages(Protocol):
    """The networks of a flow policy over KV slots."""

    device: torch.device
    kv_bytes: int
    """Memory of the slots."""
    capacity: int
    """T, positions of a slot."""
    kinds: tuple[str, ...]
    """The kinds of its layers (models/grouped.py)."""
    reads_places: bool
    """As in PassContract."""

    def prefix_rows(self, cameras: int, tokens: int) -> int:
        """Rows of a prefix."""
        ...

    def velocity(self, rows: FlowRows, prefixes: PrefixInputs | None, steps: StepInputs | None) -> Tensor | None:
        """Write the prefixes of the frames that begin to their slots; the velocities [n M, H, A] float32 of those that
        step, None where none does.
        """
        ...

    def copy_prefix(self, source: int, target: int, rows: int) -> None:
        """Copy the first rows of a slot to another one."""
        ...


class FlowPolicy(Policy, Protocol):
    """A policy that denoises chunks of actions."""

    sizes: FlowSizes
    device: torch.device
    dtype: torch.dtype

    @property
    def rtc(self) -> RTCSettings | None: ...

    @property
    def frame_shape(self) -> tuple[tuple[int, int, int, int], int]:
        """C, 3, h, w of a frame's pixel values with all images, and the numbers of its state, padding included."""
        ...

    def stages(self, slots: int, capacity: int) -> FlowStages:
        """Its networks over so many slots. capacity: positions of a slot, prefix and step."""
        ...

    def prepare(self, observation: Observation) -> Any:
        """The prepared inputs of a frame, a FlowFrame; its noise follows from the policy's seed and the frame's stamp.

        With a history: what `joined` (engine/control/history.HistoryPolicy) makes a FlowFrame of.
        """
        ...

    def actions(self, values: NDArray[np.float64], unnorm_key: str | None = None) -> NDArray[np.float64]:
        """Normalised [H, A] → [horizon of the schema, D] in the schema's units."""
        ...

    def normalised(self, actions: NDArray[np.float64]) -> NDArray[np.float64]:
        """[n, D] in the schema's units → normalised [n, D]; not finite where a dimension has no way back."""
        ...
