"""Validated requests of robots, and what the policy gets of them (config/matching.py). Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from edgeflow.config.matching import Names, find_inputs
from edgeflow.contract import PolicyInputs
from edgeflow.ipc.framing import Payload
from edgeflow.scheduler.execution import CONTINUING, ExecutionFacts
from edgeflow_client.errors import FailedPrecondition
from edgeflow_client.reasons import Reason
from edgeflow_client.trajectory import Arrived, Playing
from edgeflow_client.types import ActionSchema, CameraSpec, Execution, ImageFormat, Mode, StateSpec

TRACE_HEADERS = ("traceparent", "tracestate")
MOST_TRACE = 512  # characters of each


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRequest:
    """A validated Open."""

    cameras: tuple[CameraSpec, ...]
    instruction: str
    control_period_ns: int
    max_action_age_ns: int | None
    mode: Mode | None
    """None = the service's default."""
    unnorm_key: str
    state: tuple[StateSpec, ...] = ()
    """The vectors whose numbers each frame carries, in order."""
    chunks: bool = False
    """The client executes chunks of several actions."""
    execution: Execution | None = None
    """How answers are executed; None for a client that asks for no execution."""
    depth: int = 0
    """Only with Mode.DEPTH."""
    tolerance_bins: int = 0
    max_passes: int = 0
    """tolerance_bins and max_passes: only with Mode.SPECULATIVE, as in contract.Speculation."""
    receipts: bool = False
    """The client wants to know which frames have arrived."""
    ignored: tuple[str, ...] = ()
    """Fields of the message that this version does not know, and may ignore."""
    front: str = ""
    """The front end whose names apply, and whose robots are silent while they execute a chunk; "" = none."""
    decoded: bool = False
    """Another process decodes its images: a frame brings pixels of `policy_cameras`."""
    policy_cameras: tuple[CameraSpec, ...] = ()
    policy_numbers: tuple[int, ...] = ()
    """Both: what the policy gets, in its order: cameras among `cameras`, and indexes into the numbers of a frame;
    both empty until they are `matched`.
    """
    trace: tuple[str, ...] = ()
    """The W3C trace context of its client: traceparent, and tracestate if it sent one; empty without one, and unless
    the service is traced.
    """

    @property
    def continues(self) -> bool:
        """Answers continue the chunk in execution, if the policy can."""
        return self.execution in CONTINUING

    @property
    def numbers(self) -> int:
        """State values per frame."""
        return sum(each.size for each in self.state)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedFrame:
    """A frame whose sizes, header, numbers and text are valid."""

    seq: int
    stamp_ns: int
    images: tuple[Payload, ...]
    state: tuple[float, ...] = ()
    """Both: one image per camera, and the numbers of all vectors, in the order of the open request."""
    instruction: str | None = None
    """None = unchanged."""
    crc32c: int | None = None
    pixels: tuple[Payload, ...] | None = None
    """height*width*3 RGB bytes of each of the policy's cameras, if another process decoded them within decode_ns;
    None = decode them here.
    """
    decode_ns: int = 0
    playing: Playing | None = None
    """The chunk in execution at the capture."""
    arrived: Arrived | None = None
    """The newest answer that reached the robot."""
    resting: bool = False
    """The robot stood still at the capture."""


def trace_context(headers: Iterable[tuple[str, str | bytes]]) -> tuple[str, ...]:
    """The W3C trace context among headers of HTTP or metadata of gRPC, with names in lower case, as in
    `OpenRequest.trace`.

    A traceparent that is given twice is ignored, and a tracestate without one; whether they are well formed is judged
    by who makes the spans.
    """
    found: dict[str, list[str]] = {name: [] for name in TRACE_HEADERS}
    for name, value in headers:
        if name in found and isinstance(value, str):
            found[name].append(value)
    parents, states = found.values()
    if len(parents) != 1 or not _may_be_trace(parents[0]):
        return ()
    state = ",".join(states)
    return (parents[0], state) if state and _may_be_trace(state) else (parents[0],)


def _may_be_trace(value: str) -> bool:
    return len(value) <= MOST_TRACE and value.isascii() and value.isprintable()


def matched(request: OpenRequest, inputs: PolicyInputs, names: Names) -> OpenRequest:
    """The request with the policy's cameras and state values; errors as in `find_inputs`."""
    cameras, numbers = find_inputs(request.cameras, request.state, inputs, names)
    resized = {each.name: each for each in cameras}
    sent = tuple(resized.get(each.name, each) for each in request.cameras)
    return replace(request, cameras=sent, policy_cameras=cameras, policy_numbers=numbers)


def recorded_cameras(request: OpenRequest) -> tuple[CameraSpec, ...]:
    """The cameras whose images arrive here: all that the robot declared, or where another process decodes them, those
    of the policy, as RGB8.
    """
    if not request.decoded:
        return request.cameras
    return tuple(replace(each, format=ImageFormat.RGB8, send=None) for each in request.policy_cameras)


def recorded_images(frame: CheckedFrame) -> tuple[Payload, ...]:
    """An image for each of these cameras: the bytes that arrived here."""
    return frame.images if frame.pixels is None else frame.pixels


def narrowed(request: OpenRequest, numbers: Sequence[float]) -> tuple[OpenRequest, list[float]]:
    """A matched request reduced to the state vectors that the policy uses, and their values in a frame.

    Its policy_numbers are empty: it is to be matched again.
    """
    starts = list(accumulate((vector.size for vector in request.state), initial=0))
    taken = sorted({bisect_right(starts, index) - 1 for index in request.policy_numbers})
    state = [request.state[place] for place in taken]
    kept = [number for place in taken for number in numbers[starts[place] : starts[place + 1]]]
    return replace(request, state=tuple(state), policy_numbers=()), kept


def check_answers(request: OpenRequest, schema: ActionSchema, facts: ExecutionFacts) -> None:
    """Reject single actions from chunks of displacements, where each row continues from the one before it, and an
    execution that the policy or the meaning of its actions does not permit.
    """
    if schema.horizon > 1 and any(schema.relative) and not request.chunks:
        raise FailedPrecondition(
            f"this policy answers with {schema.horizon} displacements, each from where the one before it leads: the "
            "client must execute chunks (edgeflow's SDK does)",
            field="open.chunks",
            reason=Reason.CHUNKS_NEEDED,
        )
    if text := facts.refusal(request.execution):
        raise FailedPrecondition(text, field="open.execution", reason=Reason.EXECUTION_UNAVAILABLE)
