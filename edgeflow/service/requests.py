"""What a robot asked for, once it has been checked: the nouns between codec and session."""

from __future__ import annotations

from dataclasses import dataclass

from edgeflow.types import CameraSpec, Mode


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRequest:
    """A session as agreed. cameras: the first is the policy's; mode None = the service's default.

    depth: meant when mode is Mode.DEPTH.
    """

    cameras: tuple[CameraSpec, ...]
    proprio_names: tuple[str, ...]
    instruction: str
    control_period_ns: int
    max_action_age_ns: int | None
    mode: Mode | None
    unnorm_key: str
    depth: int = 0


@dataclass(frozen=True, slots=True)
class CheckedFrame:
    """A frame whose sizes, header, numbers and text are good; its pixels are not decoded yet.

    images: one a camera, in the order of the open request. instruction: None = unchanged.
    """

    seq: int
    stamp_ns: int
    images: tuple[bytes, ...]
    instruction: str | None
    crc32c: int | None
