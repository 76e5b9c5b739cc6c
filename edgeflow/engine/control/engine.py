"""The executors of policies as the control loop sees them: of action tokens, of denoised chunks, of single passes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from edgeflow.engine.control.history import first_prompts, has_sessions
from edgeflow.engine.control.records import Answer, AnswerBook
from edgeflow.engine.control.samples import sample_observations
from edgeflow.engine.executor import Executor
from edgeflow.engine.flow.frames import FlowFrame, Previous, guidance_of
from edgeflow.engine.flow.passes import FlowPasses
from edgeflow.engine.flow.policy import FlowPolicy
from edgeflow.engine.graphs import Record
from edgeflow.engine.one_pass import OnePasses
from edgeflow.engine.policy import INSTRUCTION, OnePassPolicy, Policy, PreparedFrame, TokenPolicy
from edgeflow.engine.shapes import ShapeClasses
from edgeflow.engine.tokens import ActionTokens, TokenPasses
from edgeflow.kernels.kv.formats import DENSE, KVFormat, check_action_tokens
from edgeflow.kernels.kv.slots import rounded_capacity
from edgeflow.kernels.table.operator_table import OperatorTable
from edgeflow.scheduler.plan import FrameRef
from edgeflow.scheduler.session import Shift
from edgeflow_client.errors import CheckpointError, ConfigError, InvalidArgument


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """Options of an engine."""

    sessions: int
    text_rows: int
    """The most rows of an instruction."""
    table: OperatorTable
    row_budget: int = 1 << 30
    """The most rows of a pass that several sessions share."""
    graphs: bool = False
    """True to replay recordings of passes."""
    shift: Shift = Shift.ROTATE

    def batch(self, policy: Policy) -> int:
        """The most frames of a pass of whole answers."""
        return min(self.sessions, max(1, self.row_budget // max(policy.fixed_rows, 1)))


class PassEngine(Executor[Any]):
    """The executor of a policy, as the control loop sees it. What is not overridden serves answers of chunks."""

    policy: Policy
    sessions: int
    """The number of sessions that the slots hold."""
    text_rows: int
    """The most rows of an instruction."""
    kv_bytes: int = 0
    """Memory of the slots."""
    batch: int = 1
    """The most frames that a pass answers whole."""
    near: tuple[bool, ...] = ()
    """As in TokenPolicy, empty where answers have no tokens."""

    def rows(self, prompt: Any) -> int:
        """Rows of a frame's prompt."""
        raise NotImplementedError

    @property
    def runs_whole(self) -> bool:
        """True where a frame whose steps overwrite each other is answered in one pass."""
        return False

    def answers(self) -> AnswerBook:
        return AnswerBook(self.answer)

    def answer(self, frame: FrameRef, passes: int, outcomes: list[Any]) -> Answer:  # noqa: ARG002 - only tokens are counted
        """The answer to a frame that is done, from the outcomes of its passes."""
        if not outcomes or outcomes[-1].values is None:
            raise RuntimeError(f"{frame} is done and no pass has answered it")
        return Answer(frame=frame, finite=outcomes[-1].finite, values=outcomes[-1].values)

    def continued(self, prompt: Any, previous: Previous) -> Any:  # noqa: ARG002 - only where chunks can continue
        """The prompt, so that its answer continues the chunk in execution; unchanged where answers cannot.

        InvalidArgument for a chunk or a delay that it cannot continue.
        """
        return prompt

    def actions(self, answer: Answer, unnorm_key: str | None, candidate: int = 0) -> NDArray[np.float64]:
        """[horizon, D] of one candidate, in the units of the policy's schema."""
        if answer.values is None:
            raise ValueError(f"the answer to {answer.frame} has no actions")
        return cast("OnePassPolicy | FlowPolicy", self.policy).actions(answer.values[candidate], unnorm_key)

    def as_sent(self, values: NDArray[np.float64], actions: NDArray[np.float64]) -> NDArray[np.float64]:  # noqa: ARG002 - as in `continued`
        """Normalised values of a chunk [H, A], those replaced that were changed before its actions [horizon, D] were
        sent, by bounds or by limits on the motion."""
        return values


class OnePassEngine(PassEngine):
    """The executor of a policy that answers in one pass. batch: the most frames of a pass, all sessions' if not given.
    record: as in Executor.
    """

    contract: OnePasses

    def __init__(
        self,
        policy: OnePassPolicy,
        sessions: int,
        text_rows: int,
        kv_bytes: int = 0,
        *,
        batch: int | None = None,
        graphs: bool = False,
        record: Record | None = None,
    ) -> None:
        self.batch = batch or sessions
        contract = OnePasses(policy, self.batch, text_rows, self._example)
        super().__init__(contract, graphs=graphs, record=record)
        self.policy: OnePassPolicy = policy
        self.sessions = sessions
        self.text_rows = text_rows
        self.kv_bytes = kv_bytes

    def rows(self, prompt: Any) -> int:
        return self.policy.fixed_rows + self.policy.prompt_tokens(prompt)

    def _example(self) -> Any:
        with first_prompts(self.policy, list(sample_observations(self.policy.inputs, 1, INSTRUCTION))) as (prompt,):
            return prompt


def one_pass_engine(policy: Policy, options: EngineOptions, kv_bytes: int = 0) -> OnePassEngine:
    """The engine of a policy that answers in one pass. kv_bytes: memory that it keeps for the rows of a pass.

    ConfigError for a policy without a method that is called for every pass.
    """
    missing = [name for name in ("prompt_tokens", "batch", "run") if not hasattr(policy, name)]
    if missing:
        found = f"policy.family: {type(policy).__name__} has no {' and no '.join(missing)}"
        raise ConfigError(f"{found}, which a policy of one pass needs; see docs/policies/write-your-own.md")
    if options.graphs and has_sessions(policy):
        text = f"model: {type(policy).__name__} has state per session, and recordings run a frame more than once"
        raise CheckpointError(f"{text}: leave graphs=True out of its Footprint")
    served = cast("OnePassPolicy", policy)
    batch = options.batch(policy)
    return OnePassEngine(served, options.sessions, options.text_rows, kv_bytes, batch=batch, graphs=options.graphs)


SAME = 1e-6  # difference by which a normalised value counts as changed


class FlowEngine(PassEngine):
    """The executor of a flow policy. record: as in Executor; all else as in FlowPasses."""

    contract: FlowPasses

    def __init__(
        self,
        policy: FlowPolicy,
        sessions: int,
        text_rows: int,
        *,
        graphs: bool = False,
        record: Record | None = None,
        **options: int,
    ) -> None:
        contract = FlowPasses(policy, sessions, text_rows, graphs=graphs, **options)
        super().__init__(contract, graphs=graphs, record=record)
        self.policy: FlowPolicy = policy
        self.sessions, self.text_rows = sessions, text_rows
        self.kv_bytes = contract.stages.kv_bytes

    def rows(self, prompt: FlowFrame) -> int:
        return self.contract.stages.prefix_rows(len(prompt.pixel_values), len(prompt.prompt_ids))

    @property
    def runs_whole(self) -> bool:
        return self.graphs is not None

    def as_sent(self, values: NDArray[np.float64], actions: NDArray[np.float64]) -> NDArray[np.float64]:
        sent, sent_values = self.policy.normalised(actions), values.copy()
        rows, dims = sent.shape
        given = sent_values[:rows, :dims]
        changed = np.isfinite(sent) & ~np.isclose(sent, given, rtol=SAME, atol=SAME)
        given[changed] = sent[changed]
        return sent_values

    def continued(self, prompt: FlowFrame, previous: Previous) -> FlowFrame:
        settings = self.policy.rtc
        if settings is None:
            return prompt
        horizon = settings.execution_horizon
        if not settings.trained_max_delay and previous.delay > horizon:
            raise InvalidArgument(
                f"is {previous.delay} rows; only the first {horizon} of a chunk are drawn to the one in execution",
                field="previous.delay",
            )
        return replace(prompt, guidance=guidance_of(previous, settings, self.policy.sizes))


def flow_engine(policy: Policy, options: EngineOptions) -> FlowEngine:
    """The engine of a flow policy."""
    served, budget = cast("FlowPolicy", policy), options.row_budget
    return FlowEngine(served, options.sessions, options.text_rows, graphs=options.graphs, row_budget=budget)


class PolicyEngine(PassEngine):
    """The executor of a token policy, with slots for whole rings of K.

    capacity: positions that a frame may use of its slot: prompt and action. graphs: replay recordings of passes; shift:
    how rings rotate then. kv_format: how keys and values are stored. record, keep_logits: as in Executor; other
    options: as in TokenPasses.
    """

    contract: TokenPasses

    def __init__(
        self,
        policy: TokenPolicy,
        slots: int,
        capacity: int,
        *,
        graphs: bool = False,
        shift: Shift = Shift.ROTATE,
        kv_format: KVFormat = DENSE,
        record: Record | None = None,
        keep_logits: bool = False,
        **options: Any,
    ) -> None:
        check_action_tokens("policy.kv", kv_format, policy.K)
        shortest = policy.fixed_rows + 1
        classes = ShapeClasses.of_rings(policy.K, slots // policy.K, shortest, capacity, shift) if graphs else None
        self.kv = kv = policy.decoder.kv_slots(slots + graphs, rounded_capacity(capacity), kv_format)
        contract = TokenPasses(ActionTokens(policy, kv.data.device), kv, classes=classes, **options)
        super().__init__(contract, graphs=graphs, record=record, keep_logits=keep_logits)
        self.policy: TokenPolicy = policy
        self.near = policy.near
        self.sessions = slots // policy.K
        self.capacity = capacity
        self.kv_bytes = kv.nbytes
        self.text_rows = capacity - policy.fixed_rows - policy.K

    def answer(self, frame: FrameRef, passes: int, outcomes: list[Any]) -> Answer:
        tokens = [token for outcome in outcomes for token in outcome.tokens][:passes]
        finite, guesses = all(outcome.finite for outcome in outcomes), passes - len(tokens)
        if guesses:
            finite = finite and outcomes[-1].guesses_finite
        ids = (*tokens, *outcomes[-1].guesses[:guesses])
        return Answer(frame=frame, finite=finite, token_ids=ids, verified=len(tokens))

    def rows(self, prompt: PreparedFrame) -> int:
        """Rows of a prompt."""
        return self.policy.fixed_rows + len(prompt.prompt_ids)

    def actions(self, answer: Answer, unnorm_key: str | None, candidate: int = 0) -> NDArray[np.float64]:  # noqa: ARG002
        return self.policy.decode_actions(answer.token_ids, unnorm_key)[None]


def token_engine(policy: Policy, options: EngineOptions) -> PolicyEngine:
    """The engine of a token policy, with a ring of K slots for each session."""
    served = cast("TokenPolicy", policy)
    return PolicyEngine(
        served,
        options.sessions * served.K,
        served.fixed_rows + options.text_rows + served.K,
        table=options.table,
        graphs=options.graphs,
        shift=options.shift,
        kv_format=served.kv_format,
    )
