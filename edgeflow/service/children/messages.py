"""The messages between control and its child processes, one packet each.

Bulk data crosses as sealed memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TypeAlias

from edgeflow.contract import PolicyInputs
from edgeflow.ipc.coding import Coding
from edgeflow.service.observation.requests import OpenRequest
from edgeflow.service.security.auth import Caller
from edgeflow.service.sessions.frames import ActionEvent
from edgeflow_client.errors import RETRY_AFTER_MS, EdgeflowError, RequestError, ResourceExhausted
from edgeflow_client.reasons import Reason
from edgeflow_client.types import ActionSchema

ACTS_AT_ONCE = 16  # the gateway's credit: observations that control answers at the same time
NUMBER = "d"  # type code of sealed chunk values: a 64-bit float


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceState:
    """Control → child: the state of the service; repeated several times per second."""

    state: str
    live: bool
    ready: bool


@dataclass(frozen=True, slots=True)
class AccessPolicy:
    """Control → child, at its start and after each change: the tokens in force. Sealed: their entries as JSON."""

    required: bool
    """False where no token is required."""


@dataclass(frozen=True, slots=True)
class Certificates:
    """Control → gateway, at its start and after each change. Sealed: certificate chain and key, as PEM."""

    client_ca: bool
    """True if a CA of client certificates is sealed too."""


@dataclass(frozen=True, slots=True)
class MetricsSnapshot:
    """Robots' process → control → gateway, and control's own → gateway, once per second. Sealed: metrics as text."""

    process: str


@dataclass(frozen=True, slots=True)
class Models:
    """Control → gateway and robots' process, at its start, with each worker and each Snapshot.

    Sealed: entries in /v1/models as JSON.
    """

    inputs: PolicyInputs | None
    """The needs of the policy; None while no worker is ready."""


@dataclass(frozen=True, slots=True)
class Drain:
    """Control → child: reject new work and finish the rest; answered by Drained."""

    deadline_ms: int


@dataclass(frozen=True, slots=True)
class ChatSocket:
    """Control → chat front: a new socket to the worker, which replaces the last one."""


@dataclass(frozen=True, slots=True)
class SavedState:
    """Control → chat front, at its start: what an earlier one kept for it. Sealed: the data."""

    key: str


@dataclass(frozen=True, slots=True)
class ActDone:
    """Control → gateway: the answer to Act."""

    request: int
    action: ActionEvent
    """Its chunk has no values where these are sealed."""
    schema: ActionSchema

    def with_numbers(self, numbers: tuple[float, ...]) -> ActDone:
        """The same answer with other numbers in its chunk, which it must have."""
        chunk = self.action.chunk
        return replace(self, action=replace(self.action, chunk=chunk and replace(chunk, values=numbers)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ActRejected:
    """Control → gateway: Act is rejected."""

    request: int
    code: str
    """A gRPC status name."""
    text: str
    field: str
    reason: str
    retry_after_ms: int = 0
    """0 = none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operated:
    """Control → gateway: the answer to Operate. Sealed, unless it is rejected: the answer as JSON."""

    request: int
    code: str = ""
    """A gRPC status name where it is rejected, with `text`, `field` and `reason` as in ActRejected."""
    text: str = ""
    field: str = ""
    reason: str = ""
    retry_after_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """Control → gateway: an answer to Watch, several times per second. Sealed: a map in msgpack, and then images."""

    number: int
    """Batches have consecutive numbers; a gap shows how many were lost."""
    map_bytes: int


@dataclass(frozen=True, slots=True)
class RobotOpened:
    """Control → robots' process: the session of OpenRobot is open."""

    session: int


@dataclass(frozen=True, slots=True)
class RobotActed:
    """Control → robots' process: the answer to ObserveRobot."""

    session: int
    action: ActionEvent
    """Its chunk has no values where these are sealed."""

    def with_numbers(self, numbers: tuple[float, ...]) -> RobotActed:
        """The same answer with other numbers in its chunk, which it must have."""
        chunk = self.action.chunk
        return replace(self, action=replace(self.action, chunk=chunk and replace(chunk, values=numbers)))


@dataclass(frozen=True, slots=True, kw_only=True)
class RobotRejected:
    """Control → robots' process: an observation gets no action, or (seq 0) the session is rejected or has ended."""

    session: int
    seq: int
    code: str
    text: str
    field: str
    reason: str
    retry_after_ms: int = 0
    """`code`, `text`, `field`, `reason`, `retry_after_ms`: as in ActRejected."""
    command: str = ""
    """"hold" or "stop" where the robot has to; "" for a rejection of what it sent."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Child → control, several times per second: its loop runs."""


@dataclass(frozen=True, slots=True)
class Serving:
    """Child → control: it accepts requests."""


@dataclass(frozen=True, slots=True)
class ChildFailed:
    """Child → control: it cannot start; `kind` is the class name of a StartError."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Drained:
    """Child → control: all work is finished."""


@dataclass(frozen=True, slots=True)
class LogEvent:
    """Child → control: a line of the event log."""

    name: str
    values: str
    """A JSON object."""


@dataclass(frozen=True, slots=True)
class SaveState:
    """Chat front → control: keep this for the next chat front. Sealed: the data, opaque to control; empty = forget."""

    key: str


@dataclass(frozen=True, slots=True)
class RequestSocket:
    """Chat front → control: it has no socket to a worker; answered by ChatSocket if there is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """Gateway → control: one checked observation. Sealed: height*width*3 RGB bytes of each of the policy's cameras."""

    request: int
    opened: OpenRequest
    """With the policy's cameras, which must be those that control finds as well, and with the vectors of state that
    it takes numbers of; these are `state`, and policy_numbers is empty. Answered by ActDone or ActRejected.
    """
    state: list[float]
    caller: Caller
    received_ns: int
    """When the request arrived, on the machine's monotonic clock."""
    decode_ns: int


@dataclass(frozen=True, slots=True)
class ActCancel:
    """Gateway → control: the client of an Act is gone; not answered."""

    request: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Operate:
    """Gateway → control: an operator asks for something; answered by Operated."""

    request: int
    action: str
    """list, hold, resume, instruct, mode or end; robot, start-robot or stop-robot for the simulated one."""
    caller: Caller
    session: int = 0
    text: str = ""
    """The reason of a hold or an end, or an instruction."""
    mode: str = ""
    depth: int = 0
    tolerance_bins: int = 0
    max_passes: int = 0
    token: str = field(default="", repr=False)
    """start-robot: the operator's token, which the robot shows; "" where none is required."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """Gateway → control, at each change and once per second while pages are open: send batches of what happens."""

    on: bool
    """False = farewell: nobody watches any more."""
    whole: bool
    """The next batch is to have the facts of all sessions."""
    details: list[int]
    """Sessions whose chunks and states are wanted."""
    pictures: list[list[int]]
    """Session and index of each camera whose pictures are wanted."""


@dataclass(frozen=True, slots=True)
class OpenRobot:
    """Robots' process → control: open a session; answered by RobotOpened, or by RobotRejected with seq 0."""

    session: int
    """A number that the process has not used before."""
    opened: OpenRequest
    """As in Act, and with the name of its front end."""
    caller: Caller


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserveRobot:
    """Robots' process → control: an observation of an open session, the next one after its answer.

    Sealed: pixels as in Act.
    """

    session: int
    seq: int
    """The session's number of it, from 1 on. Answered by RobotActed, or by RobotRejected with its seq."""
    state: list[float]
    instruction: str
    received_ns: int
    decode_ns: int


@dataclass(frozen=True, slots=True)
class ResetRobot:
    """Robots' process → control: a new episode begins; not answered."""

    session: int


@dataclass(frozen=True, slots=True)
class CloseRobot:
    """Robots' process → control: the robot is gone; not answered."""

    session: int


FromRobots: TypeAlias = OpenRobot | ObserveRobot | ResetRobot | CloseRobot
ToChild: TypeAlias = (
    ServiceState
    | AccessPolicy
    | Certificates
    | MetricsSnapshot
    | Models
    | Drain
    | ChatSocket
    | SavedState
    | ActDone
    | ActRejected
    | Operated
    | Watched
    | RobotOpened
    | RobotActed
    | RobotRejected
)
FromChild: TypeAlias = (
    Heartbeat
    | Serving
    | ChildFailed
    | Drained
    | LogEvent
    | SaveState
    | RequestSocket
    | MetricsSnapshot
    | Act
    | ActCancel
    | Operate
    | Watch
    | FromRobots
)
ChildMessage: TypeAlias = ToChild | FromChild

MUST_TAKE = (
    AccessPolicy,
    Certificates,
    ChatSocket,
    SavedState,
)  # a child that cannot take one of these ends; its successor will

CODING: Coding[ChildMessage] = Coding(ChildMessage.__args__)


def rejection(request: int, error: EdgeflowError) -> ActRejected:
    """The rejection of an observation."""
    rejected = ActRejected(request=request, code=error.code, text=error.text, field="", reason="")
    if not isinstance(error, RequestError):
        return rejected
    return replace(rejected, field=error.field, reason=error.reason, retry_after_ms=error.retry_after_ms or 0)


def no_room(request: int) -> ActRejected:
    """The rejection of an observation for which, or for whose answer, memory or descriptors are lacking."""
    text = "no memory for another observation or its answer"
    return rejection(request, ResourceExhausted(text, reason=Reason.QUEUE_FULL, retry_after_ms=RETRY_AFTER_MS))
