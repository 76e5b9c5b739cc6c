"""The records of sessions: what a robot sent, what it was answered, what it executed.

Services and robots write the same records, so that both kinds of recordings are read the same way. They lie in a
recording as JSON, on the topic TOPIC; fields with their defaults are left out. Images lie beside them as Foxglove's
messages (`foxglove_messages.py`). A field that a later version adds has a default, and readers ignore fields they do
not know.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta, Struct

from edgeflow_client.trajectory import Arrived, ChunkReport, Playing
from edgeflow_client.types import ActionSchema, CameraSpec, Command, Disposition, Execution, Mode, StateSpec

TOPIC = "/edgeflow/sessions"
FORMAT = "1"  # of recordings; a later one cannot be read
NUMBER = "record_number"  # field that the recorder adds to each record: the number of its ring
FACTS = "edgeflow"  # name of the metadata that says so
MOST_VALUES = 32_768
MOST_TOPIC_CHARACTERS = 64  # of a camera's name
_OTHER = re.compile(r"[^A-Za-z0-9_.-]")
Count: TypeAlias = Annotated[int, Meta(ge=0)]
Values: TypeAlias = Annotated[tuple[float, ...], Meta(max_length=MOST_VALUES)]
Text: TypeAlias = Annotated[str, Meta(max_length=65_536)]


class SessionRecord(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False, tag_field="kind"):
    """A record of a session."""

    session: Count
    """Number of the session: the service's, or 0 in the recording of a robot."""
    time_ns: Count
    """Nanoseconds since 1970. Those of a writer increase."""


class RecordedOpening(SessionRecord, frozen=True, kw_only=True, tag="opened"):
    """A session was opened; repeated at the beginning of each file while it is open."""

    source: str
    """"service" or "robot"."""
    peer: Text = ""
    principal: Text = ""
    front: str = ""
    """The front end that its robot speaks to; "" = gRPC."""
    model: Text = ""
    cameras: tuple[CameraSpec, ...]
    """The cameras as declared; those that the service had resized have the size that was sent."""
    policy_cameras: tuple[str, ...] = ()
    """Names of those that the policy gets, in its order; empty in the recording of a robot."""
    state: tuple[StateSpec, ...] = ()
    instruction: Text = ""
    control_period_ns: Count = 0
    max_action_age_ns: Count | None = None
    mode: Mode | None = None
    """As asked for; None = the service's default."""
    served_mode: Mode | None = None
    depth: Count = 0
    tolerance_bins: Count = 0
    max_passes: Count = 0
    unnorm_key: Text = ""
    chunks: bool = False
    execution: Execution | None = None
    schema: ActionSchema | None = None
    """The meaning of its actions."""
    traceparent: Text = ""
    tracestate: Text = ""
    """The W3C trace context that its robot sent, as it came; empty unless the service is traced."""


class RecordedObservation(SessionRecord, frozen=True, kw_only=True, tag="frame"):
    """An observation as it came. Its images are the payload of the record, in the order of the cameras."""

    seq: Count
    """As the robot counts."""
    epoch: Count = 0
    stamp_ns: Count
    """Capture time on the robot's clock."""
    image_bytes: tuple[Count, ...] = ()
    """Bytes of each camera's image."""
    state: Values = ()
    """The values of all state vectors, one after the other."""
    instruction: Text = ""
    """The instruction in force."""
    playing: Playing | None = None
    arrived: Arrived | None = None
    resting: bool = False
    pose: Values = ()
    """Pose of the tool at capture: `[7]`, x, y, z in metres and a unit quaternion w, x, y, z; only robots record it."""
    waited_ns: Count = 0
    """Time since it arrived on the service's machine, where another process read it."""


class RecordedPass(Struct, frozen=True, array_like=True, gc=False):
    """A pass of a frame: a list of these numbers."""

    start_ns: Count
    end_ns: Count
    """Both since the frame was received."""
    steps: Count = 1
    """Passes of the frame's program that it took."""
    prefills: Count = 0
    decodes: Count = 0
    """Prefills and decode rows of all frames in the pass."""


class RecordedAnswer(SessionRecord, frozen=True, kw_only=True, tag="answer"):
    """An action that was sent to the robot, or that it received."""

    seq: Count
    epoch: Count = 0
    stamp_ns: Count = 0
    values: Values = ()
    """[horizon, D] row by row, in the units of the schema."""
    horizon: Count = 1
    step_ms: float = 0.0
    token_ids: tuple[Count, ...] = ()
    decode_ns: Count = 0
    queue_ns: Count = 0
    inference_ns: Count = 0
    passes: Count = 0
    server_ns: Count = 0
    """From receiving the frame to sending the action."""
    age_ns: Count = 0
    """Age of the frame when its action was sent or, in the recording of a robot, received."""
    settled: Count = 0
    valid_for_ms: Count = 0
    max_age_ms: Count = 0
    report: ChunkReport = msgspec.field(default_factory=ChunkReport)
    execution: Execution | None = None
    rows: Count = 0
    rate_percent: Count = 100
    from_arrival: bool = False
    decoding_ns: Count = 0
    """From receiving the frame to the start of its decoding."""
    spans: tuple[RecordedPass, ...] = ()
    """Its passes; empty in the recording of a robot."""


class RecordedHold(SessionRecord, frozen=True, kw_only=True, tag="hold"):
    """HOLD or STOP."""

    epoch: Count = 0
    command: Command
    reason: str


class RecordedOutcome(SessionRecord, frozen=True, kw_only=True, tag="outcome"):
    """The outcome of a frame without an answer, or of the superseded frames seq to last_seq."""

    seq: Count
    last_seq: Count = 0
    disposition: Disposition
    code: str = ""
    reason: str = ""
    text: Text = ""


class RecordedNotice(SessionRecord, frozen=True, kw_only=True, tag="notice"):
    """A notice about the session."""

    epoch: Count = 0
    notice: str
    """Its kind, as in the message Notice."""
    code: str = ""
    text: Text = ""


class RecordedExecution(SessionRecord, frozen=True, kw_only=True, tag="executed"):
    """The row that a robot executes from now on, recorded by its SDK. It executes nothing after a `hold`."""

    seq: Count
    row: Count
    values: Values
    """[D] in the units of the schema, blended and limited."""
    age_ns: Count = 0
    """Age of the frame when the robot read the row."""
    pose: Values = ()
    """`[7]`, the pose to which the row moves the tool: x, y, z in metres and a unit quaternion w, x, y, z; empty if the
    row does not displace the tool, or its frame was pushed without a pose."""


class RecordedClosing(SessionRecord, frozen=True, kw_only=True, tag="closed"):
    """A session was closed."""

    epoch: Count = 0
    code: str = ""
    reason: str = ""


AnySessionRecord: TypeAlias = (
    RecordedOpening
    | RecordedObservation
    | RecordedAnswer
    | RecordedHold
    | RecordedOutcome
    | RecordedNotice
    | RecordedExecution
    | RecordedClosing
)
ENCODER = msgspec.msgpack.Encoder()
"""Writes heads of records for the ring."""
DECODER: msgspec.msgpack.Decoder[AnySessionRecord] = msgspec.msgpack.Decoder(AnySessionRecord)
"""Reads heads of records from the ring."""


def session_schema() -> bytes:
    """The JSON schema of records of sessions."""
    return msgspec.json.encode(msgspec.json.schema(AnySessionRecord))


def image_topics(session: int, cameras: Sequence[str], kind: str = "images") -> tuple[str, ...]:
    """The topic of each camera's images, by the cameras' names in the order of their opening.

    Other characters than letters, digits, `_`, `-` and `.` become `_`; equal names get a number.
    """
    topics: list[str] = []
    for name in cameras:
        topic = f"/session-{session}/{kind}/{_OTHER.sub('_', name)[:MOST_TOPIC_CHARACTERS] or '_'}"
        while topic in topics:
            topic += f"-{len(topics)}"
        topics.append(topic)
    return tuple(topics)
