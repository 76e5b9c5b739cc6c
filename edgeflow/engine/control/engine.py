"""The interface between the control plane and the engine of a policy, however its answers come about."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from edgeflow.contract import StageProgram
from edgeflow.engine.executor import Stamp, Ticket
from edgeflow.engine.flow.guidance import Previous
from edgeflow.engine.graphs import Graphs, Record
from edgeflow.engine.policy import Policy
from edgeflow.engine.program import PassOutputs
from edgeflow.kernels.table.operator_table import OperatorTable
from edgeflow.scheduler.plan import FrameRef, Outcome, Pass
from edgeflow.scheduler.ring import Shift


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """Options of an engine. text_rows: the most rows of an instruction. row_budget: the most rows of a pass in which
    several sessions share. graphs: replay recordings of passes.
    """

    sessions: int
    text_rows: int
    table: OperatorTable
    row_budget: int = 1 << 30
    graphs: bool = False
    shift: Shift = Shift.ROTATE


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The whole answer to a frame. finite: False when a number behind it was not.

    token_ids: its K action tokens, the first `settled` of which are settled; the others are what its last pass gave
    behind wrong drafts. values: [horizon, D] normalised actions of a policy without tokens, or [M, horizon, A] of M
    candidates.
    """

    frame: FrameRef
    finite: bool
    token_ids: tuple[int, ...] = ()
    settled: int = 0
    values: NDArray[np.float64] | None = None

    @property
    def candidates(self) -> NDArray[np.float64] | None:
        """values [M, horizon, A]; None where the answer has tokens."""
        if self.values is None:
            return None
        return self.values.reshape(-1, *self.values.shape[-2:])


class AnswerBook(Protocol):
    """The answers of frames in flight, as their passes give them. Frames that were not begun are ignored."""

    def __contains__(self, frame: FrameRef) -> bool: ...

    def begin(self, frame: FrameRef, program: StageProgram) -> None: ...

    def add(self, outcomes: Iterable[Outcome[FrameRef]]) -> None:
        """Note what a pass gave."""
        ...

    def take(self, frame: FrameRef) -> Answer:
        """The answer of a frame that is done, which is forgotten."""
        ...

    def drop(self, frame: FrameRef) -> None:
        """Forget a frame that left without an answer."""
        ...


class PassEngine(Protocol):
    """Runs the passes of a policy. One device, one caller, passes in order.

    sessions: that it has room for. near: as of TokenPolicy, empty where answers have no tokens. launch_ahead, graphs,
    record: as of Executor. text_rows: the most rows of an instruction. kv_bytes: memory of the slots.
    """

    sessions: int
    near: tuple[bool, ...]
    launch_ahead: int
    graphs: Graphs[PassOutputs] | None
    record: Record | None
    text_rows: int

    @property
    def policy(self) -> Policy: ...

    @property
    def kv_bytes(self) -> int: ...

    def stamp(self) -> Stamp | None: ...

    def launch(self, planned: Pass[FrameRef], prompts: Mapping[FrameRef, Any]) -> Ticket[FrameRef]: ...

    def collect(self, ticket: Ticket[FrameRef]) -> Sequence[Outcome[FrameRef]]: ...

    def answers(self) -> AnswerBook: ...

    def continued(self, prompt: Any, previous: Previous) -> Any:
        """The prompt, whose answer continues the chunk being played; as it is where answers cannot.

        InvalidArgument for a chunk or a delay that it cannot continue.
        """
        ...

    def actions(self, answer: Answer, unnorm_key: str | None, candidate: int = 0) -> NDArray[np.float64]:
        """[horizon, D] of one candidate, in the units of the policy's schema."""
        ...

    def played(self, values: NDArray[np.float64], actions: NDArray[np.float64]) -> NDArray[np.float64]:
        """Normalised values of a chunk [H, A], those replaced that were changed before its actions [horizon, D] were
        sent, by bounds or by limits on the motion."""
        ...
