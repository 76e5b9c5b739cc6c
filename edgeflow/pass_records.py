"""The records of passes: what crosses the boundary of the worker's control loop, in order.

They lie in a recording as JSON, on the topic PASS_TOPIC, without payload: the pixels are in the records of sessions,
and here is their hash. They hold what a replay needs to run the same passes (lab/recordings). Exactness needs the same
version of edgeflow, so that records hold messages and plans as they are.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

import msgspec
import xxhash
from msgspec import Meta, Struct

from edgeflow.ipc.framing import Payload
from edgeflow.ipc.messages import OpenSession, ResetSession, SubmitFrame
from edgeflow.scheduler.plan import Departure, FrameRef, Pass
from edgeflow_client.trajectory import Playing

PASS_TOPIC = "/edgeflow/passes"
Count: TypeAlias = Annotated[int, Meta(ge=0)]


class EngineFacts(Struct, frozen=True, kw_only=True):
    """Everything that the answers of an engine depend on, besides the observations."""

    version: str
    """The version of edgeflow."""
    model: str
    """Its path or name, as configured."""
    fingerprint: str
    """Fingerprint of the checkpoint and the policy's settings (models.checkpoint.fingerprint)."""
    family: str
    plugin: str = ""
    machine: str
    """The architecture of the processor."""
    cpu: str
    """The model of the processor."""
    cpu_capability: str
    """The instructions that torch's own operators use."""
    cpu_flags: tuple[str, ...]
    """The vector instructions of the processor."""
    threads: int
    """CPU threads of torch."""
    libraries: dict[str, str]
    """Versions of python, torch and others that compute, by name."""
    device: str
    """The name of the device."""
    dtype: str
    graphs: bool
    """True where passes are replayed."""
    operators: dict[str, str]
    """The implementation of each operator that the model may call, by name and stage, where shapes are not known."""
    overlay: str = ""
    """The hash of the operator overlay; "" without one."""
    kv_format: str
    sessions: int
    """Sessions whose slots are reserved."""
    config: str
    """The configuration as JSON, without addresses, tokens and certificates."""


class PassRecord(Struct, frozen=True, kw_only=True, tag_field="kind", omit_defaults=True):
    """A record of passes. In a recording each also has the field `number`, its own among the records of its topic."""

    time_ns: Count
    """Nanoseconds since 1970. Those of a writer increase."""


class EngineRecord(PassRecord, frozen=True, kw_only=True, tag="engine"):
    """A worker begins to serve. It knows no sessions."""

    facts: EngineFacts


class OpenedRecord(PassRecord, frozen=True, kw_only=True, tag="opened"):
    """A session has its ring. Rejected ones are not recorded."""

    session: int
    message: OpenSession


class ClosedRecord(PassRecord, frozen=True, kw_only=True, tag="closed"):
    """A session gave its ring back."""

    session: int
    left: tuple[Departure, ...] = ()
    """The frames that left, here as in other records."""


class ResetRecord(PassRecord, frozen=True, kw_only=True, tag="reset"):
    """A new epoch of a session."""

    session: int
    epoch: int
    left: tuple[Departure, ...] = ()

    @property
    def message(self) -> ResetSession:
        return ResetSession(self.session, self.epoch)


class HashedFrame(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A frame as control submitted it (ipc.messages.SubmitFrame), with hashes in place of its pixels."""

    session: int
    epoch: int
    seq: int
    sizes: list[int]
    instruction: str
    pixels: tuple[str, ...]
    """The hash of each image (`pixel_hash`)."""
    state: list[float] = []
    stamp_ns: int = 0
    waited_ns: int = 0
    turn_wait_ns: int = 0
    playing: Playing | None = None
    delay_ns: int = 0
    rested: bool = False
    seen_only: bool = False
    rate_percent: int = 100
    start_delay_ns: int = 0

    @classmethod
    def of(cls, message: SubmitFrame) -> HashedFrame:
        """WorkerError if the payload does not match the sizes."""
        pixels = tuple(pixel_hash(image.data) for image in message.images())
        return cls(pixels=pixels, **{name: getattr(message, name) for name in _SUBMITTED})

    def message(self, images: tuple[Payload, ...]) -> SubmitFrame:
        """The frame with these pixels, one image per camera of the policy."""
        return SubmitFrame(payload=images, **{name: getattr(self, name) for name in _SUBMITTED})

    @property
    def ref(self) -> FrameRef:
        return FrameRef(self.session, self.epoch, self.seq)


_SUBMITTED = tuple(name for name in HashedFrame.__struct_fields__ if name != "pixels")


class SeenRecord(PassRecord, frozen=True, kw_only=True, tag="seen"):
    """A frame that a newer one replaced before the loop took it, or that is only part of a history."""

    frame: HashedFrame


class OfferRecord(PassRecord, frozen=True, kw_only=True, tag="frame"):
    """A frame came to the loop."""

    frame: HashedFrame
    rows: int = 0
    """Rows of its prompt; 0 = the policy rejected its text, so that it was not offered to the scheduler."""
    arrived_ns: int
    """On the worker's clock."""
    left: tuple[Departure, ...] = ()


class LaunchRecord(PassRecord, frozen=True, kw_only=True, tag="pass"):
    """A turn of the loop in which frames were prepared, frames left, or a pass was launched."""

    begun: tuple[FrameRef, ...] = ()
    """The frames that were prepared, in order."""
    rejected: tuple[FrameRef, ...] = ()
    """Those of them that the policy rejected."""
    planned: Pass[FrameRef] | None = None
    ran: str = ""
    """The shape in which it was replayed; "" where it ran as it was."""
    left: tuple[Departure, ...] = ()
    """The frames that left before."""


class PassOutcome(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The outcome of a segment of a pass (scheduler.plan.Outcome)."""

    frame: FrameRef
    tokens: tuple[int, ...] = ()
    finite: bool = True
    found: int = 0
    guesses: tuple[int, ...] = ()
    """Unverified tokens."""
    values: str = ""
    """The hash of all its candidates, normalised; "" where it gave none."""


class FrameAnswer(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An answer as it was published (ipc.messages.FrameResult)."""

    session: int
    epoch: int
    seq: int
    values: tuple[float | None, ...]
    """[horizon, D] row by row; None for a number that is not finite."""
    horizon: int = 1
    step_ms: float = 0.0
    token_ids: tuple[int, ...] = ()
    valid: bool = True
    passes: int = 0
    settled: int = 0
    queue_ns: int = 0
    inference_ns: int = 0
    report: dict[str, Any]
    """The ChunkReport; None for a number that is not finite."""

    @property
    def ref(self) -> FrameRef:
        return FrameRef(self.session, self.epoch, self.seq)


class CommitRecord(PassRecord, frozen=True, kw_only=True, tag="commit"):
    """A pass was collected."""

    pass_number: int
    """As in `Pass.number`."""
    outcomes: tuple[PassOutcome, ...]
    """One per segment."""
    left: tuple[Departure, ...] = ()
    answers: tuple[FrameAnswer, ...] = ()
    """Those that were published, in order."""


AnyPassRecord: TypeAlias = (
    EngineRecord | OpenedRecord | ClosedRecord | ResetRecord | SeenRecord | OfferRecord | LaunchRecord | CommitRecord
)


def pixel_hash(image: Payload) -> str:
    """The hash of an image's bytes."""
    return xxhash.xxh3_128_hexdigest(image)


def pass_schema() -> bytes:
    """The JSON schema of records of passes."""
    return msgspec.json.encode(msgspec.json.schema(AnyPassRecord))
