"""The interface between engine and policy: the token-generation contract (docs/architecture.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from edgeflow.kernels.kv.formats import KVFormat
from edgeflow.kernels.kv.layout import PackedLayout
from edgeflow.kernels.kv.slots import KVSlots
from edgeflow.types import ActionSchema

INSTRUCTION = "warm up"
"""The instruction of the frames that a worker runs before it is ready."""


@dataclass(frozen=True, slots=True)
class PreparedFrame:
    """Inputs of a prefill. pixel_values: [C, h, w] float32, on the host or on the device. prompt_ids: text tokens, BOS
    first.
    """

    pixel_values: Tensor
    prompt_ids: tuple[int, ...]


class Decoder(Protocol):
    """The language model as functions of packed rows and a KV store. name: its model_name in the operator table."""

    name: str

    def embed(self, ids: Tensor) -> Tensor:
        """[n] → [n, E]"""
        ...

    def forward(self, hidden: Tensor, layout: PackedLayout, kv: KVSlots) -> Tensor:
        """[L_Q, E] → [L_Q, E]; writes the rows' keys and values into their slots."""
        ...

    def forward_sampled(self, hidden: Tensor, layout: PackedLayout, kv: KVSlots) -> Tensor:
        """[L_Q, E] → [n, E]; as `forward`, but only the sampled rows."""
        ...

    def logits(self, hidden: Tensor, stage: str) -> Tensor:
        """[n, E] → [n, V]; stage: of the pass (kernels/shapes.stage_of)"""
        ...

    def kv_slots(self, slots: int, capacity: int, format: KVFormat = ...) -> KVSlots:
        """A KV store with this decoder's layers, heads and dtype."""
        ...


class TokenPolicy(Protocol):
    """A vision-language-action model that answers a frame with K action tokens."""

    K: int
    image_tokens: int
    first_guess: tuple[int, ...]
    """[K-1] tokens that an answer is guessed to have where no other one is near"""
    near: tuple[bool, ...]
    """[K] the tokens that are bins of a displacement, so that one next to the right one is nearly right"""

    @property
    def decoder(self) -> Decoder: ...

    @property
    def pixel_shape(self) -> tuple[int, int, int]:
        """C, h, w of a frame's pixel values."""
        ...

    @property
    def unnorm_keys(self) -> tuple[str, ...]: ...

    def prompt_ids(self, instruction: str) -> tuple[int, ...]: ...

    def preprocess(self, image: NDArray[np.uint8]) -> Tensor:
        """[H, W, 3] RGB → [C, h, w] float32, on the host, or on the device without waiting for it."""
        ...

    def embed_rows(self, pixel_values: Tensor, ids: Sequence[Tensor]) -> list[Tensor]:
        """[B, C, h, w] and B prompts [t] on the device → B tensors [L_P, E], without reading anything on the host."""
        ...

    def decode_actions(self, token_ids: Sequence[int], unnorm_key: str | None = None) -> NDArray[np.float64]:
        """[K] token ids → [K] numbers in the schema's units."""
        ...

    def action_schema(self, unnorm_key: str | None = None) -> ActionSchema: ...
