"""Token generation by a policy: a frame's prefill is pixels and a prompt, and K action tokens follow."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from edgeflow.engine.contract import Drafting
from edgeflow.engine.executor import Executor
from edgeflow.engine.policy import Decoder, PreparedFrame, TokenPolicy
from edgeflow.engine.shapes import ShapeClasses
from edgeflow.kernels.kv.formats import DENSE, KVFormat
from edgeflow.kernels.kv.layout import on_device
from edgeflow.kernels.kv.slots import rounded_capacity
from edgeflow.kernels.table.implementations import Hardware
from edgeflow.kernels.table.operator_table import built_in_table
from edgeflow.scheduler.plan import FrameRef, Outcome
from edgeflow.scheduler.ring import Shift


@dataclass(frozen=True, slots=True)
class Answer:
    """The K action tokens of a finished frame; finite is False when any logit behind them was not.

    settled: the first of them that are settled; the others are what its last pass gave behind wrong drafts.
    """

    frame: FrameRef
    token_ids: tuple[int, ...]
    finite: bool
    settled: int


class Answers:
    """The tokens of frames in flight, as their passes settle them. Frames that were not begun are ignored."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._outcomes: dict[FrameRef, list[Outcome[FrameRef]]] = {}

    def __contains__(self, frame: FrameRef) -> bool:
        return frame in self._outcomes

    def begin(self, frame: FrameRef) -> None:
        self._outcomes[frame] = []

    def add(self, outcomes: Iterable[Outcome[FrameRef]]) -> None:
        """Note what a pass gave."""
        for outcome in outcomes:
            if outcome.sequence in self._outcomes:
                self._outcomes[outcome.sequence].append(outcome)

    def take(self, frame: FrameRef) -> Answer:
        """The whole answer of a frame that is done, which is forgotten."""
        parts = self._outcomes.pop(frame)
        tokens = [token for part in parts for token in part.tokens][: self._count]
        finite, guesses = all(part.finite for part in parts), self._count - len(tokens)
        if guesses:
            finite = finite and parts[-1].guesses_finite
        return Answer(frame, (*tokens, *parts[-1].guesses[:guesses]), finite, len(tokens))

    def drop(self, frame: FrameRef) -> None:
        """Forget a frame that left without an answer."""
        self._outcomes.pop(frame, None)


class ActionTokens:
    """The contract of a policy (engine/contract.py). Numbers: the prompt's ids; payload: pixels, float32."""

    components = 1

    def __init__(self, policy: TokenPolicy, device: torch.device) -> None:
        self._policy = policy
        self.drafting = Drafting(on_device(policy.first_guess, device), on_device(policy.near, device))
        self._pixel_bytes = 4 * math.prod(policy.pixel_shape)

    @property
    def decoder(self) -> Decoder:
        return self._policy.decoder

    def count(self, rows: int) -> int:
        return rows - self._policy.image_tokens

    def payload_bytes(self, rows: int) -> int:  # noqa: ARG002 - any prompt has one image
        return self._pixel_bytes

    def numbers(self, prompt: PreparedFrame, rows: int) -> Sequence[int]:  # noqa: ARG002
        return prompt.prompt_ids

    def payload(self, prompt: PreparedFrame) -> Tensor:
        return prompt.pixel_values

    def embed(self, rows: Sequence[int], numbers: Sequence[Tensor], payload: Tensor) -> list[Tensor]:
        pixels = payload.view(torch.float32).view(len(rows), *self._policy.pixel_shape)
        return self._policy.embed_rows(pixels, numbers)

    def positions(self, rows: Sequence[int], numbers: Sequence[Tensor]) -> None:
        """None: rows rotate by where they are placed."""


class PolicyEngine(Executor):
    """The executor of a policy, with slots for whole rings of K.

    capacity: positions that a frame may use of its slot: prompt and action. graphs: replay recordings of passes; shift:
    how rings rotate then. kv_format: how keys and values are stored. Other options: as of Executor. Without graphs, and
    with attention that reads places on the host, nothing is launched ahead: they follow from what drafts settle.
    """

    def __init__(
        self,
        policy: TokenPolicy,
        slots: int,
        capacity: int,
        *,
        graphs: bool = False,
        shift: Shift = Shift.ROTATE,
        kv_format: KVFormat = DENSE,
        **options: Any,
    ) -> None:
        shortest = policy.image_tokens + 1
        classes = ShapeClasses.of_rings(policy.K, slots // policy.K, shortest, capacity, shift) if graphs else None
        kv = policy.decoder.kv_slots(slots + graphs, rounded_capacity(capacity), kv_format)
        super().__init__(ActionTokens(policy, kv.data.device), kv, classes=classes, **options)
        self.policy = policy
        self.capacity = capacity
        table = options.get("table") or built_in_table()
        if self.launch_ahead and not graphs:
            hardware = Hardware.of(kv.data.device)
            self.launch_ahead = int(not table.reads_places(policy.decoder.name, kv.format.name, hardware, kv.dtype))
