"""The messages between control and its child processes, one packet each; bulk data crosses as sealed memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from edgeflow.contract import Chunk, PolicyInputs
from edgeflow.ipc.coding import Coding
from edgeflow.service.observation.requests import OpenRequest
from edgeflow_client.trajectory import ChunkReport
from edgeflow_client.types import ActionSchema, StageTimings

ACTS_AT_ONCE = 16  # observations that the gateway may have at control: its credit


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Control → child: the state of the service; repeated several times per second."""

    state: str
    live: bool
    ready: bool


@dataclass(frozen=True, slots=True)
class Policy:
    """Control → child, at its start and after each change: the tokens in force. Sealed: their entries as JSON.

    asks: False where no token is required.
    """

    asks: bool


@dataclass(frozen=True, slots=True)
class Certificates:
    """Control → gateway, at its start and after each change. Sealed: certificate chain and key, as PEM.

    client_ca: True if a CA of client certificates is sealed too.
    """

    client_ca: bool


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Control → gateway, once per second. Sealed: control's metrics as text."""


@dataclass(frozen=True, slots=True)
class Models:
    """Control → gateway, at its start, with each worker and each Snapshot. Sealed: entries in /v1/models as JSON.

    inputs: what the policy needs; None while no worker is ready.
    """

    inputs: PolicyInputs | None


@dataclass(frozen=True, slots=True)
class Drain:
    """Control → child: refuse new work and finish the rest; answered by Drained."""

    deadline_ms: int


@dataclass(frozen=True, slots=True)
class ChatSocket:
    """Control → chat front: a new socket to the worker, in place of the one before."""


@dataclass(frozen=True, slots=True)
class Kept:
    """Control → chat front, at its start: what an earlier one kept for it. Sealed: the data."""

    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ActDone:
    """Control → gateway: the answer to Act. command: of the action; chunk and token_ids are empty unless it is ACT.

    chunk: without values where these are sealed (act_answers.py). report: how it came about.
    """

    request: int
    command: str
    reason: str
    chunk: Chunk | None
    token_ids: list[int]
    valid_for_ms: int
    max_age_ms: int
    age_ns: int
    server_ns: int
    timings: StageTimings
    schema: ActionSchema
    report: ChunkReport = field(default_factory=ChunkReport)


@dataclass(frozen=True, slots=True, kw_only=True)
class ActRefused:
    """Control → gateway: Act is refused. code: a gRPC status name. retry_after_ms: 0 = none."""

    request: int
    code: str
    text: str
    field: str
    reason: str
    retry_after_ms: int = 0


@dataclass(frozen=True, slots=True)
class Beat:
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
    """Child → control: nothing runs any more."""


@dataclass(frozen=True, slots=True)
class LogEvent:
    """Child → control: a line of the event log. values: a JSON object."""

    name: str
    values: str


@dataclass(frozen=True, slots=True)
class Keep:
    """Chat front → control: keep this for the next chat front. Sealed: the data, opaque to control; empty = forget."""

    key: str


@dataclass(frozen=True, slots=True)
class WantSocket:
    """Chat front → control: it has no socket to a worker; answered by ChatSocket if there is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """Gateway → control: one checked observation. Sealed: height*width*3 RGB bytes of each of the policy's cameras.

    opened: with the policy's cameras, which must be those that control finds as well, and with the vectors of state
    that it takes numbers of; these are `state`, and policy_numbers is empty.
    Answered by ActDone or ActRefused. peer, principal, token: of the caller (security/auth.py). received_ns: when the
    request arrived, on the machine's monotonic clock.
    """

    request: int
    opened: OpenRequest
    state: list[float]
    peer: str
    principal: str
    token: str
    received_ns: int
    decode_ns: int


@dataclass(frozen=True, slots=True)
class ActCancel:
    """Gateway → control: the client of an Act is gone; not answered."""

    request: int


ToChild: TypeAlias = (
    State | Policy | Certificates | Snapshot | Models | Drain | ChatSocket | Kept | ActDone | ActRefused
)
FromChild: TypeAlias = Beat | Serving | ChildFailed | Drained | LogEvent | Keep | WantSocket | Act | ActCancel
ChildMessage: TypeAlias = ToChild | FromChild

MUST_TAKE = (Policy, Certificates, ChatSocket, Kept)  # a child that cannot take one of these ends; its successor will

CODING: Coding[ChildMessage] = Coding((*ToChild.__args__, *FromChild.__args__))
