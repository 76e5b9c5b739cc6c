"""What front and worker say to each other: a fixed set of messages. ipc/coding.py makes bytes of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from edgeflow.types import ActionSchema, PassTimes

Payload: TypeAlias = bytes | memoryview
"""raw bytes behind a header: sent from wherever they lie, received as bytes"""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenSession:
    """Front → worker: give this session a ring of slots. Answered by SessionOpened or SessionRefused.

    depth: ticks a frame takes, 1 (serial) to K (pipelined). deadline_ns: from a frame's arrival to its action.
    period_ns: between frames.
    instruction: checked, not kept; every frame brings its own.
    """

    session: int
    epoch: int
    depth: int
    unnorm_key: str
    instruction: str = ""
    deadline_ns: int = 0
    period_ns: int = 0


@dataclass(frozen=True, slots=True)
class Begin:
    """Front → worker in reserve: take over. pass_times: measured by an earlier worker; None = measure them again."""

    pass_times: PassTimes | None


@dataclass(frozen=True, slots=True)
class StandingBy:
    """Worker in reserve → front: everything is loaded, `Begin` will find it at once."""


@dataclass(frozen=True, slots=True)
class ChangeDepth:
    """Front → worker: from the session's next frame on. Not answered."""

    session: int
    depth: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitFrame:
    """Front → worker: one checked observation. Payload: height*width*3 RGB bytes of the policy's camera.

    waited_ns: since the front received it.
    Answered by exactly one FrameResult or FrameDropped.
    """

    session: int
    epoch: int
    seq: int
    height: int
    width: int
    instruction: str
    payload: Payload
    waited_ns: int = 0


@dataclass(frozen=True, slots=True)
class ResetSession:
    """Front → worker: what is in flight belongs to an old epoch from now on."""

    session: int
    epoch: int


@dataclass(frozen=True, slots=True)
class CloseSession:
    """Front → worker: drop what is in flight and free the ring."""

    session: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatStart:
    """Front → worker: answer a prompt. Answered by ChatTokens and one ChatDone, or by ChatRefused.

    ids: the prompt's tokens, one a place for an image. sizes: height, width of each image, one after the other.
    top_k: 0 = off. seed, logprobs: -1 = none. schema: a JSON schema that the answer must follow, or "".
    Payload: the images' height*width*3 RGB bytes, one after the other.
    """

    request: int
    model: str
    ids: list[int]
    sizes: list[int]
    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    seed: int
    logprobs: int
    schema: str
    payload: Payload


@dataclass(frozen=True, slots=True)
class ChatStop:
    """Front → worker: the answer is complete (a stop string), or nobody wants it any more."""

    request: int
    cancelled: bool


@dataclass(frozen=True, slots=True)
class SetPrefix:
    """Front → worker: what a declared slot begins with from now on; no ids = nothing. Computed after the requests that
    came before it, which keep the prefix they run on. Answered by PrefixSet or ChatRefused.
    """

    request: int
    slot: str
    ids: list[int]


@dataclass(frozen=True, slots=True)
class Ping:
    """Front → worker, once a second: proves that the loop turns."""

    nonce: int


@dataclass(frozen=True, slots=True)
class Shutdown:
    """Front → worker: finish the pass in flight and leave with exit code 0."""


@dataclass(frozen=True, slots=True)
class WarmupProgress:
    """Worker → front: how far the start is."""

    step: str
    done: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReady:
    """Worker → front: a warm-up pass was checked.

    schema: of the default un-normalisation key. prefill_rows: L_P of a short instruction. pass_times: measured at
    start. operators: implementations in use besides the built-in ones, in one line.
    """

    model: str
    model_fingerprint: str
    max_sessions: int
    device: str
    schema: ActionSchema
    unnorm_keys: list[str]
    kv_bytes: int
    prefill_rows: int
    pass_times: PassTimes
    operators: str = ""

    @property
    def action_tokens(self) -> int:
        """K: tokens per action."""
        return self.pass_times.stages


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatReady:
    """Worker → front, before WorkerReady, once a chat model: what it can take.

    capacity: positions of a slot, prompt and answer together. slots: of the declared fixed prefixes.
    step_ns: one decode row. row_ns: a prompt's row, in chunks. sampling: the checkpoint's own temperature, top_p,
    min_p and repetition_penalty. numbers: what it computes in and what that costs, for a person.
    """

    model: str
    family: str
    model_fingerprint: str
    images: bool
    capacity: int
    slots: list[str]
    kv_bytes: int
    step_ns: int
    row_ns: int
    sampling: list[float]
    top_k: int
    numbers: str


@dataclass(frozen=True, slots=True)
class ChatToken:
    """Worker → front: the next token. logprobs: its own and those of the likeliest `top`; empty unless asked for."""

    request: int
    token: int
    logprobs: list[float]
    top: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatDone:
    """Worker → front: the answer's end. reason: stop, length or cancelled. reused: prompt rows of a fixed prefix.

    slot: whose prefix that was, or "". queue_ns: from arrival to the first step; prefill_ns: to the first token.
    """

    request: int
    reason: str
    prompt_tokens: int
    answer_tokens: int
    reused: int
    slot: str
    queue_ns: int
    prefill_ns: int
    decode_ns: int


@dataclass(frozen=True, slots=True)
class ChatRefused:
    """Worker → front: a RequestError; `code` is a gRPC status name."""

    request: int
    code: str
    text: str
    field: str
    reason: str


@dataclass(frozen=True, slots=True)
class PrefixSet:
    """Worker → front: the slot's prefix is computed; tokens: its length."""

    request: int
    slot: str
    tokens: int


@dataclass(frozen=True, slots=True)
class WorkerFailed:
    """Worker → front: cannot start; `kind` is the class name of a StartError."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class SessionOpened:
    """Worker → front: the session has a ring."""

    session: int
    schema: ActionSchema


@dataclass(frozen=True, slots=True)
class SessionRefused:
    """Worker → front: a RequestError; `code` is a gRPC status name."""

    session: int
    code: str
    text: str
    field: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameResult:
    """Worker → front: the action of a frame. `valid` is False when logits or action were not finite."""

    session: int
    epoch: int
    seq: int
    values: list[float]
    token_ids: list[int]
    valid: bool
    queue_ns: int
    inference_ns: int
    passes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameDropped:
    """Worker → front: the frame leaves without an action. disposition: superseded, rejected or dropped."""

    session: int
    epoch: int
    seq: int
    disposition: str
    code: str
    reason: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pong:
    """Worker → front: answers Ping; counts since start, and every pass since the last one.

    pass_ns, pass_prefills, pass_decodes: one entry a pass, its time and its shape. eager_passes: those that no graph
    held, where graphs are replayed.
    """

    nonce: int
    passes: int
    rows: int
    full_passes: int
    pass_ns: list[int]
    pass_prefills: list[int]
    pass_decodes: list[int]
    eager_passes: int = 0


Message: TypeAlias = (
    Begin
    | StandingBy
    | OpenSession
    | ChangeDepth
    | SubmitFrame
    | ResetSession
    | CloseSession
    | ChatStart
    | ChatStop
    | SetPrefix
    | Ping
    | Shutdown
    | WarmupProgress
    | ChatReady
    | ChatToken
    | ChatDone
    | ChatRefused
    | PrefixSet
    | WorkerReady
    | WorkerFailed
    | SessionOpened
    | SessionRefused
    | FrameResult
    | FrameDropped
    | Pong
)
