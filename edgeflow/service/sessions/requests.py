"""Validated requests of robots: the types between codec and session."""

from __future__ import annotations

from dataclasses import dataclass

from edgeflow.ipc.messages import Payload
from edgeflow.types import CameraSpec, Mode


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRequest:
    """A validated Open.

    cameras: as declared. policy_cameras: those of them that the policy gets, in its order; empty until that is known.
    mode: None = the service's default. depth: with Mode.DEPTH only. tolerance_bins, max_passes: with Mode.SPECULATIVE
    only, as in types.Speculation.
    """

    cameras: tuple[CameraSpec, ...]
    proprio_names: tuple[str, ...]
    instruction: str
    control_period_ns: int
    max_action_age_ns: int | None
    mode: Mode | None
    unnorm_key: str
    depth: int = 0
    tolerance_bins: int = 0
    max_passes: int = 0
    policy_cameras: tuple[CameraSpec, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedFrame:
    """A frame whose sizes, header, numbers and text are valid.

    images: one per camera, in the order of the open request. instruction: None = unchanged.
    pixels: height*width*3 RGB bytes of the policy's camera if they were decoded elsewhere, in decode_ns; None = decode
    them here.
    """

    seq: int
    stamp_ns: int
    images: tuple[bytes, ...]
    instruction: str | None = None
    crc32c: int | None = None
    pixels: Payload | None = None
    decode_ns: int = 0
