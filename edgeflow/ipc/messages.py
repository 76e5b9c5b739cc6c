"""The fixed set of messages to and from the worker: those of control, and chat's; ipc/coding.py serialises them."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate
from typing import TypeAlias

from edgeflow.contract import CHANNELS, Chunk, Image, Pace, PassTimes, PolicyInputs, StageProgram
from edgeflow.ipc.chat_messages import (
    ChatDone,
    ChatReady,
    ChatRejected,
    ChatStart,
    ChatStop,
    ChatToken,
    PrefixSet,
    SetPrefix,
)
from edgeflow.ipc.framing import Payloads
from edgeflow_client.errors import WorkerError
from edgeflow_client.trajectory import ChunkReport, Playing
from edgeflow_client.types import ActionSchema


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenSession:
    """Control → worker: reserve KV slots for a session. Answered by SessionOpened or SessionRejected."""

    session: int
    epoch: int
    pace: Pace
    unnorm_key: str
    instruction: str = ""
    """Checked but not stored; every frame carries its own."""
    deadline_ns: int = 0
    """Time from a frame's arrival to its action."""
    patience_ns: int = 0
    """Time from a frame's arrival until it is given up because it is too old; 0 = never. It applies to frames with
    drafts only.
    """
    period_ns: int = 0
    """Time between frames."""
    continues: bool = False
    """Answers continue the chunk in execution, if the policy can."""


@dataclass(frozen=True, slots=True)
class Begin:
    """Control → worker in reserve: take over."""

    pass_times: PassTimes | None
    """Measured by an earlier worker; None = measure them again."""


@dataclass(frozen=True, slots=True)
class StandingBy:
    """Worker in reserve → control: everything is loaded; `Begin` starts it at once."""


@dataclass(frozen=True, slots=True)
class ChangePace:
    """Control → worker: use another pace from the session's next frame on. Not answered."""

    session: int
    pace: Pace
    patience_ns: int = 0
    """As in OpenSession, for the session's next frames."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitFrame:
    """Control → worker: one checked observation, answered by exactly one FrameResult or FrameDropped.

    Payload: height*width*3 RGB bytes of each camera of the policy.
    """

    session: int
    epoch: int
    seq: int
    sizes: list[int]
    """Height and width of each image, flattened."""
    instruction: str
    payload: Payloads
    state: list[float] = field(default_factory=list)
    """The values of all state vectors. Images and state are in the order of the policy's inputs."""
    stamp_ns: int = 0
    """Capture time on the robot's clock."""
    waited_ns: int = 0
    """Time since control received it."""
    turn_wait_ns: int = 0
    """Time for which it may still wait for its turn (scheduler/turns.py); 0 = as long as it takes."""
    playing: Playing | None = None
    """The chunk in execution at its capture, if it may be continued."""
    delay_ns: int = 0
    """Expected age of the frame when its answer is executed: measured, or the forecast before the first answer; 0 =
    unknown.
    """
    rested: bool = False
    """The first frame after a HOLD, or of an epoch: earlier observations do not count."""
    seen_only: bool = False
    """The frame is part of the session's history and is not answered: it leaves as superseded."""
    rate_percent: int = 100
    """The share of the chunk's rate at which the answer is executed."""
    start_delay_ns: int = 0
    """Expected time from its capture until row 0 of its answer is executed, where the robot stands still until then; 0
    where rows count from the capture.
    """

    def images(self) -> list[Image]:
        """The images as views of the payload; WorkerError if the payload does not match the sizes."""
        if len(self.sizes) % 2:
            raise WorkerError(f"a frame has {len(self.sizes)} sides of images, which are two each")
        sizes = list(zip(self.sizes[::2], self.sizes[1::2], strict=True))
        lengths = [height * width * CHANNELS for height, width in sizes]
        if isinstance(self.payload, tuple):
            parts = list(self.payload)
        else:
            view, ends = memoryview(self.payload), list(accumulate(lengths))
            parts = [view[end - length : end] for end, length in zip(ends, lengths, strict=True)]
        bytes_of = [len(part) for part in parts]
        whole = sum(bytes_of) if isinstance(self.payload, tuple) else len(self.payload)
        if bytes_of != lengths or whole != sum(lengths):
            raise WorkerError(f"a frame of sizes {self.sizes} has {whole} bytes of pixels, in parts {bytes_of}")
        return [Image(*size, part) for size, part in zip(sizes, parts, strict=True)]


@dataclass(frozen=True, slots=True)
class ResetSession:
    """Control → worker: start a new epoch; frames in flight belong to the old one and are dropped."""

    session: int
    epoch: int


@dataclass(frozen=True, slots=True)
class CloseSession:
    """Control → worker: drop the frames in flight and free the session's slots."""

    session: int


@dataclass(frozen=True, slots=True)
class Ping:
    """Control → worker, once per second: requests a Pong."""

    nonce: int


@dataclass(frozen=True, slots=True)
class Shutdown:
    """Control → worker: finish the pass in flight and exit with code 0."""


@dataclass(frozen=True, slots=True)
class WarmupProgress:
    """Worker → control: progress of the start."""

    step: str
    done: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReady:
    """Worker → control: the warm-up succeeded and the worker serves."""

    model: str
    model_fingerprint: str
    max_sessions: int
    device: str
    schema: ActionSchema
    """The schema of the default un-normalisation key."""
    unnorm_keys: list[str]
    kv_bytes: int
    prefill_rows: int
    """Prefill rows (L_P) of a short instruction."""
    pass_times: PassTimes
    """Measured at start."""
    inputs: PolicyInputs
    """The inputs that the policy needs from each observation."""
    programs: list[StageProgram]
    """The program of each un-normalisation key, in the order of unnorm_keys."""
    row_budget: int = 1024
    """The most rows per pass."""
    operators: str = ""
    """Implementations in use besides the built-in ones, in one line."""
    memory: str = ""
    """The KV memory of the sessions and what was free, in one line."""
    bins: bool = False
    """Some tokens are bins of a displacement, so that sessions may set a tolerance or a limit of passes."""
    continues: bool = False
    """Answers can continue the chunk in execution."""
    bridged_rows: int = 0
    """Rows of a chunk that may pass until an answer arrives (engine/policy.bridged_rows)."""
    family: str = ""
    """The family of the policy."""
    plugin: str = ""
    """Its plug-in: name, distribution and version; "" for a built-in family."""
    warnings: list[str] = field(default_factory=list)
    """Warnings about the checkpoints, for people."""


@dataclass(frozen=True, slots=True)
class WorkerFailed:
    """Worker → control: the worker cannot start; `kind` is the class name of a StartError."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class SessionOpened:
    """Worker → control: the session has its slots."""

    session: int
    schema: ActionSchema


@dataclass(frozen=True, slots=True)
class SessionRejected:
    """Worker → control: the request is rejected with a RequestError; `code` is a gRPC status name."""

    session: int
    code: str
    text: str
    field: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameResult:
    """Worker → control: the answer to a frame. `valid` is False if logits or actions were not finite."""

    session: int
    epoch: int
    seq: int
    chunk: Chunk
    token_ids: list[int]
    valid: bool
    queue_ns: int
    inference_ns: int
    passes: int
    settled: int
    """Number of verified tokens: K, unless the session limits passes."""
    report: ChunkReport = field(default_factory=ChunkReport)
    """How the chunk was made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassSpan:
    """The time of a pass, as the host of its frame sees it: from its launch, or the end of the pass before it, until
    its results are on the host.
    """

    start_ns: int
    end_ns: int
    """Both on the machine's monotonic clock, or where it is said, since the frame was received."""
    steps: int
    """Passes of the frame's program that it took: all of them in a whole pass."""
    prefills: int
    decodes: int
    """Prefills and decode rows of all frames in the pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedFrameResult(FrameResult):
    """The answer to a frame, with the time of each of its passes; only while the service is traced or recorded."""

    spans: list[PassSpan]


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameDropped:
    """Worker → control: a frame leaves without an action."""

    session: int
    epoch: int
    seq: int
    disposition: str
    """Superseded, rejected or dropped."""
    code: str
    reason: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pong:
    """Worker → control: answers Ping with the counts since the start and the passes since the last Pong."""

    nonce: int
    passes: int
    rows: int
    full_passes: int
    pass_ns: list[int]
    """The time of each pass."""
    pass_prefills: list[int]
    """The prefills of each pass."""
    pass_decodes: list[int]
    """The decode rows of each pass."""
    pass_whole: list[bool]
    """For each pass, True where its frames took all of their passes in it."""
    eager_passes: int = 0
    """Passes without a captured graph, if graphs are used."""
    settling_stages: list[int] = field(default_factory=list)
    settling_bins: list[int] = field(default_factory=list)
    settling_passes: list[int] = field(default_factory=list)
    settling_done: list[bool] = field(default_factory=list)
    """These four: a VerificationSample (scheduler/verification.py) per frame that drafted and left since the last
    Pong.
    """
    unusual_states: int = 0
    """Frames whose state was outside the range of its statistics."""


_Sessions: TypeAlias = Begin | StandingBy | OpenSession | ChangePace | SubmitFrame | ResetSession | CloseSession
_Chat: TypeAlias = ChatStart | ChatStop | SetPrefix
_ChatAnswers: TypeAlias = ChatReady | ChatToken | ChatDone | ChatRejected | PrefixSet
_Life: TypeAlias = WorkerReady | WorkerFailed
_Answers: TypeAlias = SessionOpened | SessionRejected | FrameResult | FrameDropped | Pong
Message: TypeAlias = (
    _Sessions | _Chat | Ping | Shutdown | WarmupProgress | _ChatAnswers | _Life | _Answers | TimedFrameResult
)
