"""Validated requests of robots: the types between codec and session."""

from __future__ import annotations

from dataclasses import dataclass

from edgeflow.types import CameraSpec, Mode


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRequest:
    """A validated Open.

    cameras: the policy uses the first. mode: None = the service's default. depth: with Mode.DEPTH only.
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
    """A frame whose sizes, header, numbers and text are valid; its pixels are not decoded yet.

    images: one per camera, in the order of the open request. instruction: None = unchanged.
    """

    seq: int
    stamp_ns: int
    images: tuple[bytes, ...]
    instruction: str | None
    crc32c: int | None
