"""The interfaces between engine and policies: answers token by token, or in one pass (engine/README.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgeflow.artifacts.sessions import Runtime
from edgeflow.contract import Observation, PolicyInputs, StageProgram
from edgeflow.engine.memory import widened_bytes, written_bytes
from edgeflow.kernels.kv.formats import DENSE, KVFormat, KVShape, slot_bytes
from edgeflow.kernels.table.operator_table import OperatorTable
from edgeflow.models.network import TokenNetwork
from edgeflow.scheduler.scheduler import row_budget_of
from edgeflow_client.types import ActionSchema

Vectors = Mapping[str, tuple[float, ...]]
"""State vectors by name, as in Observation.state."""
INSTRUCTION = "warm up"
"""The instruction of the frames that a worker runs before it is ready."""


@dataclass(frozen=True, slots=True)
class PreparedFrame:
    """Inputs of a prefill."""

    pixel_values: Tensor
    """[C, h, w] float32, on the host or on the device."""
    prompt_ids: tuple[int, ...]
    """Text tokens, BOS first."""


class BridgingPolicy(Protocol):
    """How a policy continues the chunk in execution."""

    def bridged_rows(self, horizon: int) -> int:
        """The rows of a chunk that may pass until its answer arrives."""
        ...


class Policy(Protocol):
    """The part common to all policies: their inputs, the stages of their answers in integers, the actions' meaning."""

    fixed_rows: int
    """Rows of a prompt besides those of its text."""
    unusual_states: int
    """Frames so far whose state was outside its statistics; 0 where these are not counted."""

    @property
    def inputs(self) -> PolicyInputs:
        """Its needs of every observation."""
        ...

    @property
    def unnorm_keys(self) -> tuple[str, ...]: ...

    @property
    def rtc(self) -> BridgingPolicy | None:
        """How answers continue the chunk in execution; None where they cannot."""
        ...

    def program(self, unnorm_key: str | None = None) -> StageProgram:
        """The stages of an answer."""
        ...

    def text_rows(self, instruction: str, state: Vectors | None = None) -> int:
        """Rows of the prompt that the instruction takes with a frame's state (Observation.state); None: the most that
        any state gives."""
        ...

    def prepare(self, observation: Observation) -> Any:
        """The inputs of a prompt's pass, on the host, or on the device without waiting for it."""
        ...

    def action_schema(self, unnorm_key: str | None = None) -> ActionSchema:
        """The meaning of an action's numbers, the horizon of a chunk and its step."""
        ...


def bridged_rows(policy: Policy, horizon: int) -> int:
    """The rows of a chunk that may pass until the answer arrives: what the policy says, or else a quarter of it."""
    return horizon // 4 if policy.rtc is None else policy.rtc.bridged_rows(horizon)


POLICY_PARTS = (
    *("fixed_rows", "unusual_states", "inputs", "unnorm_keys", "rtc"),
    *("program", "text_rows", "prepare", "action_schema"),
)
"""The attributes and methods of every policy."""


class TokenPolicy(Policy, Protocol):
    """A vision-language-action model that answers a frame with K action tokens."""

    K: int
    first_guess: tuple[int, ...]
    """[K-1] the drafts of an answer that has no earlier one to be guessed from"""
    near: tuple[bool, ...]
    """[K] True for tokens that are bins of a displacement, so that a neighbouring bin is nearly right"""
    kv_format: KVFormat
    """The format in which slots keep keys and values"""

    @property
    def decoder(self) -> TokenNetwork: ...

    @property
    def pixel_shape(self) -> tuple[int, int, int]:
        """C, h, w of a frame's pixel values."""
        ...

    def prompt_ids(self, instruction: str) -> tuple[int, ...]: ...

    def prepare(self, observation: Observation) -> PreparedFrame: ...

    def embed_rows(self, pixel_values: Tensor, ids: Sequence[Tensor]) -> list[Tensor]:
        """[B, C, h, w] and B prompts [t] on the device → B tensors [L_P, E], without reading anything on the host."""
        ...

    def decode_actions(self, token_ids: Sequence[int], unnorm_key: str | None = None) -> NDArray[np.float64]:
        """[K] token ids → [K] numbers in the schema's units."""
        ...


class OnePassPolicy(Policy, Protocol):
    """A policy that answers in one pass, without anything kept between passes; frames of several robots are a batch."""

    device: torch.device
    dtype: torch.dtype

    def prompt_tokens(self, frame: Any) -> int:
        """Tokens of a prepared frame's prompt; 0 for a policy without prompts."""
        ...

    def batch(self, frames: Sequence[Any], tokens: int) -> list[Tensor]:
        """Prepared frames [B] as tensors, on the host or on the device. tokens: those that each prompt is padded to.

        Their dtypes and shapes follow from both counts.
        """
        ...

    def run(self, batch: Sequence[Tensor], *, on_host: bool) -> Tensor:
        """A batch on the device → normalised actions [B, horizon, D] float32, on the device.

        on_host: the batch may be read on the host; otherwise the work follows from its shapes, as a recording needs.
        """
        ...

    def actions(self, values: NDArray[np.float64], unnorm_key: str | None = None) -> NDArray[np.float64]:
        """[horizon, D] of `run` → [horizon, D] in the schema's units."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """Settings of the service for checkpoints of every family."""

    center_crop: bool = False
    """Crop images to 0.9 of their area."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where and how a policy is loaded."""

    dtype: torch.dtype
    device: torch.device
    table: OperatorTable
    preprocess_on_device: bool = False
    """True when frames are resized and normalised on the device."""
    runtime: Runtime = field(default_factory=Runtime)
    """How exported graphs are run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Memory that a policy takes, known before it is loaded."""

    decoder: int
    """The number of weights that may be converted to another precision."""
    other: int
    """The number of all other weights that are floats."""
    slots: int
    """KV slots per session."""
    positions: int
    """Positions of a slot besides those of the text."""
    row_bytes: int
    """Activations per row of a pass."""
    kv: KVShape | None = None
    """The sizes of a slot, its capacity aside; None without slots."""
    kv_format: KVFormat = DENSE
    """The format in which slots keep keys and values."""
    frame_bytes: int = 0
    """Activations per frame of a pass besides those of its rows, with the memory of its session besides KV."""
    step_rows: int = 0
    """Positions of a slot that a denoising step takes, 0 without."""
    quantised: int = 0
    """Bytes of the weights in 4 bits."""
    graphs: bool = False
    """True when passes can be replayed as CUDA graphs."""
    capacity: int | None = None
    """Positions of a slot where they are fixed; None where they depend on the text."""
    most_sessions: int | None = None
    """The most robots that the policy can serve at a time, such as 1 where it keeps a queue itself; None = any."""

    def weight_bytes(self, dtype: torch.dtype, weights: str = "float") -> int:
        """Memory of all weights in a dtype. weights: the setting, by which the decoder's may be converted."""
        itemsize = 1 if weights == "fp8" else dtype.itemsize
        return self.decoder * itemsize + self.other * dtype.itemsize + self.quantised

    def slot_bytes(self, capacity: int) -> int:
        """Memory of a slot of so many positions."""
        return slot_bytes(self.kv_format, replace(self.kv, capacity=capacity)) if self.kv else 0

    def visited_bytes(self, capacity: int, device: torch.device) -> int:
        """Intermediate results of a pass for each slot of so many positions that it writes and reads, rows aside."""
        if self.kv is None:
            return 0
        shape = replace(self.kv, capacity=capacity)
        return widened_bytes(self.kv_format, shape, device) + written_bytes(self.kv_format, shape, spans=1)

    def row_budget(self, configured: int | None, text_rows: int) -> int:
        """Most rows of a pass (scheduler.row_budget_of). text_rows: the most of an instruction."""
        prompt = self.positions + text_rows - self.step_rows
        return row_budget_of(configured, prompt, self.slots - 1, self.step_rows)


class Published(Protocol):
    """A checkpoint whose configuration has been read and whose weights have not.

    It may have `inputs`, those of its policy: `edgeflow pull` shows them.
    """

    @property
    def unnorm_keys(self) -> tuple[str, ...]: ...

    def footprint(self, dtype: torch.dtype) -> Footprint: ...

    def load(self, placement: Placement) -> Policy:
        """Read the weights; CheckpointError says what is wrong with them."""
        ...
