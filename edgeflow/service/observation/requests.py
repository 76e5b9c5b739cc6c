"""Validated requests of robots: the types between codec and session."""

from __future__ import annotations

from dataclasses import dataclass

from edgeflow.ipc.framing import Payload
from edgeflow_client.trajectory import Arrived, Playing
from edgeflow_client.types import CameraSpec, Mode, StateSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRequest:
    """A validated Open.

    state: the vectors whose numbers each frame carries, in order. chunks: the client plays chunks of several actions.
    rtc: answers continue the chunk that the robot plays, where the policy can.
    mode: None = the service's default. depth: with Mode.DEPTH only. tolerance_bins, max_passes: with Mode.SPECULATIVE
    only, as in types.Speculation.
    policy_cameras, policy_numbers: what the policy gets, in its order: cameras among `cameras`, and indexes into the
    numbers of a frame; both empty until they are matched (service/observation/matching.py).
    """

    cameras: tuple[CameraSpec, ...]
    instruction: str
    control_period_ns: int
    max_action_age_ns: int | None
    mode: Mode | None
    unnorm_key: str
    state: tuple[StateSpec, ...] = ()
    chunks: bool = False
    rtc: bool = False
    depth: int = 0
    tolerance_bins: int = 0
    max_passes: int = 0
    policy_cameras: tuple[CameraSpec, ...] = ()
    policy_numbers: tuple[int, ...] = ()

    @property
    def numbers(self) -> int:
        """Numbers of state in a frame."""
        return sum(each.size for each in self.state)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedFrame:
    """A frame whose sizes, header, numbers and text are valid.

    images, state: one image per camera, and the numbers of all vectors, in the order of the open request.
    instruction: None = unchanged. playing: the chunk that the robot plays at the capture. arrived: the newest answer.
    pixels: height*width*3 RGB bytes of each of the policy's cameras if they were decoded elsewhere, in decode_ns;
    None = decode them here.
    """

    seq: int
    stamp_ns: int
    images: tuple[Payload, ...]
    state: tuple[float, ...] = ()
    instruction: str | None = None
    crc32c: int | None = None
    pixels: tuple[Payload, ...] | None = None
    decode_ns: int = 0
    playing: Playing | None = None
    arrived: Arrived | None = None
