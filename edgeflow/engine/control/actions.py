"""Token generation by a policy: a frame's prefill is pixels and a prompt, and K action tokens follow."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgeflow.contract import StageProgram
from edgeflow.engine.contract import Drafting
from edgeflow.engine.control.engine import Answer, EngineOptions
from edgeflow.engine.executor import Executor
from edgeflow.engine.flow.guidance import Previous
from edgeflow.engine.outcomes import Sampled
from edgeflow.engine.policy import Decoder, Policy, PreparedFrame, TokenPolicy
from edgeflow.engine.shapes import ShapeClasses
from edgeflow.kernels.kv.formats import DENSE, KVFormat, check_action_tokens
from edgeflow.kernels.kv.layout import on_device
from edgeflow.kernels.kv.slots import rounded_capacity
from edgeflow.kernels.table.implementations import Hardware
from edgeflow.kernels.table.operator_table import built_in_table
from edgeflow.scheduler.plan import FrameRef, Outcome
from edgeflow.scheduler.ring import Shift


class TokenAnswers:
    """The tokens of frames in flight, as their passes settle them (engine/control/engine.AnswerBook)."""

    def __init__(self) -> None:
        self._frames: dict[FrameRef, tuple[int, list[Sampled[FrameRef]]]] = {}

    def __contains__(self, frame: FrameRef) -> bool:
        return frame in self._frames

    def begin(self, frame: FrameRef, program: StageProgram) -> None:
        self._frames[frame] = (program.passes, [])

    def add(self, outcomes: Iterable[Outcome[FrameRef]]) -> None:
        for outcome in outcomes:
            if outcome.sequence in self._frames and isinstance(outcome, Sampled):
                self._frames[outcome.sequence][1].append(outcome)

    def take(self, frame: FrameRef) -> Answer:
        count, parts = self._frames.pop(frame)
        tokens = [token for part in parts for token in part.tokens][:count]
        finite, guesses = all(part.finite for part in parts), count - len(tokens)
        if guesses:
            finite = finite and parts[-1].guesses_finite
        ids = (*tokens, *parts[-1].guesses[:guesses])
        return Answer(frame=frame, finite=finite, token_ids=ids, settled=len(tokens))

    def drop(self, frame: FrameRef) -> None:
        self._frames.pop(frame, None)


class ActionTokens:
    """The contract of a policy (engine/contract.py). Numbers: the prompt's ids; payload: pixels, float32."""

    components = 1
    keeps_ids = False

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

    def ids(self, rows: Sequence[int], numbers: Sequence[Tensor]) -> list[Tensor]:  # noqa: ARG002
        raise ValueError("the tokens of these prompts are not kept")

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
        check_action_tokens("policy.kv", kv_format, policy.K)
        shortest = policy.image_tokens + 1
        classes = ShapeClasses.of_rings(policy.K, slots // policy.K, shortest, capacity, shift) if graphs else None
        kv = policy.decoder.kv_slots(slots + graphs, rounded_capacity(capacity), kv_format)
        super().__init__(ActionTokens(policy, kv.data.device), kv, classes=classes, **options)
        self.policy = policy
        self.near = policy.near
        self.sessions = slots // policy.K
        self.capacity = capacity
        self.text_rows = capacity - policy.image_tokens - policy.K
        table = options.get("table") or built_in_table()
        if self.launch_ahead and not graphs:
            hardware = Hardware.of(kv.data.device)
            self.launch_ahead = int(not table.reads_places(policy.decoder.name, kv.format.name, hardware, kv.dtype))

    @property
    def kv_bytes(self) -> int:
        return self.kv.nbytes

    def answers(self) -> TokenAnswers:
        return TokenAnswers()

    def continued(self, prompt: PreparedFrame, previous: Previous) -> PreparedFrame:  # noqa: ARG002 - tokens do not
        return prompt

    def rows(self, prompt: PreparedFrame) -> int:
        """Rows of a prompt."""
        return self.policy.image_tokens + len(prompt.prompt_ids)

    def played(self, values: NDArray[np.float64], actions: NDArray[np.float64]) -> NDArray[np.float64]:  # noqa: ARG002 - tokens do not
        """The values as they are: nothing continues them."""
        return values

    def actions(self, answer: Answer, unnorm_key: str | None, candidate: int = 0) -> NDArray[np.float64]:  # noqa: ARG002
        return self.policy.decode_actions(answer.token_ids, unnorm_key)[None]


def token_engine(policy: Policy, options: EngineOptions) -> PolicyEngine:
    """The engine of a token policy, with a ring of K slots for each session."""
    served = cast("TokenPolicy", policy)
    return PolicyEngine(
        served,
        options.sessions * served.K,
        served.image_tokens + options.text_rows + served.K,
        table=options.table,
        graphs=options.graphs,
        shift=options.shift,
        kv_format=served.kv_format,
    )
