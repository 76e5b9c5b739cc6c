"""The engine of policies that answer in one pass: frames of several robots are a batch, and nothing is kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgeflow.contract import StageProgram
from edgeflow.engine.control.engine import Answer, EngineOptions
from edgeflow.engine.executor import CudaStamp, Stamp, Ticket
from edgeflow.engine.flow.guidance import Previous
from edgeflow.engine.graphs import Graphs, Record
from edgeflow.engine.policy import OnePassPolicy, Policy
from edgeflow.engine.program import PassOutputs
from edgeflow.scheduler.plan import FrameRef, Outcome, Pass


@dataclass(frozen=True, slots=True)
class Projected(Outcome[FrameRef]):
    """An outcome with the actions of a frame: [horizon, D], normalised."""

    values: NDArray[np.float64] = field(default_factory=lambda: np.empty((0, 0)), compare=False)


class ChunkAnswers:
    """The chunks of frames in flight (engine/control/engine.AnswerBook)."""

    def __init__(self) -> None:
        self._frames: dict[FrameRef, Projected | None] = {}

    def __contains__(self, frame: FrameRef) -> bool:
        return frame in self._frames

    def begin(self, frame: FrameRef, program: StageProgram) -> None:  # noqa: ARG002 - always one pass
        self._frames[frame] = None

    def add(self, outcomes: Iterable[Outcome[FrameRef]]) -> None:
        for outcome in outcomes:
            if outcome.sequence in self._frames and isinstance(outcome, Projected):
                self._frames[outcome.sequence] = outcome

    def take(self, frame: FrameRef) -> Answer:
        outcome = self._frames.pop(frame)
        if outcome is None:
            raise RuntimeError(f"{frame} is done and no pass has answered it")
        return Answer(frame=frame, finite=outcome.finite, values=outcome.values)

    def drop(self, frame: FrameRef) -> None:
        self._frames.pop(frame, None)


class OnePassEngine:
    """Runs the frames of a pass as one batch (engine/control/engine.PassEngine). Passes are not replayed.

    launch_ahead: 0 everywhere, since a frame that waits behind a pass can still be replaced by a newer one.
    """

    graphs: Graphs[PassOutputs] | None = None
    record: Record | None = None
    near: tuple[bool, ...] = ()
    launch_ahead = 0

    def __init__(self, policy: OnePassPolicy, sessions: int, text_rows: int, kv_bytes: int = 0) -> None:
        self.policy = policy
        self.sessions = sessions
        self.text_rows = text_rows
        self.kv_bytes = kv_bytes

    @torch.inference_mode()
    def launch(self, planned: Pass[FrameRef], prompts: Mapping[FrameRef, Any]) -> Ticket[FrameRef]:
        """Start a pass over the frames of its prompts, and fetch what it gives."""
        started = self.stamp()
        values = self.policy.run([prompts[segment.sequence] for segment in planned.prefills])
        return Ticket(
            planned=planned,
            samples=(1,) * len(planned.segments),
            results=values.to("cpu", torch.float64, non_blocking=True, copy=True),
            logits=None,
            started=started,
            done=self.stamp(),
        )

    def collect(self, ticket: Ticket[FrameRef]) -> Sequence[Outcome[FrameRef]]:
        """Wait for a pass; the chunk of each of its frames."""
        if ticket.done is not None:
            ticket.done.wait()
        chunks = cast("Tensor", ticket.results).numpy()
        finite = np.isfinite(chunks).all(axis=(1, 2))
        lines = zip(ticket.planned.segments, chunks, finite, strict=True)
        return [Projected(segment.sequence, (), bool(sound), values=values) for segment, values, sound in lines]

    def stamp(self) -> Stamp | None:
        """A mark behind everything enqueued so far; None where launching computes."""
        return CudaStamp(self.policy.device) if self.policy.device.type == "cuda" else None

    def answers(self) -> ChunkAnswers:
        return ChunkAnswers()

    def continued(self, prompt: Any, previous: Previous) -> Any:  # noqa: ARG002 - chunks do not depend on each other
        return prompt

    def played(self, values: NDArray[np.float64], actions: NDArray[np.float64]) -> NDArray[np.float64]:  # noqa: ARG002 - chunks do not depend on each other
        """The values as they are: nothing continues them."""
        return values

    def actions(self, answer: Answer, unnorm_key: str | None, candidate: int = 0) -> NDArray[np.float64]:  # noqa: ARG002
        """[horizon, D] in the units of the policy's schema."""
        if answer.values is None:
            raise ValueError(f"the answer to {answer.frame} has no actions")
        return self.policy.actions(answer.values, unnorm_key)


def one_pass_engine(policy: Policy, options: EngineOptions, kv_bytes: int = 0) -> OnePassEngine:
    """The engine of a policy that answers in one pass. kv_bytes: memory that it keeps for the rows of a pass."""
    return OnePassEngine(cast("OnePassPolicy", policy), options.sessions, options.text_rows, kv_bytes)
