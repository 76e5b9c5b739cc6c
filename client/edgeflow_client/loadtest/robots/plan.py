"""The plan of a load test: who connects, what is sent when, and for how long; and the parsing of durations."""

from __future__ import annotations

import re
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TypeAlias

from edgeflow_client.errors import ConfigError
from edgeflow_client.types import CameraSpec, ImageFormat, Mode, StateSpec

MAX_ROBOTS = 256
DEFAULT_PERIOD_S = 0.05
_UNITS_S = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|ms|s|m|h)")


@dataclass(frozen=True, slots=True)
class Closed:
    """Send the next frame when one of `window` frames in flight has its disposition."""

    window: int = 1


@dataclass(frozen=True, slots=True)
class Fixed:
    """Send frames at a fixed rate per robot, on an absolute schedule, whatever the service does."""

    rate_hz: float


@dataclass(frozen=True, slots=True)
class Bursts:
    """Send `frames` at once, every `period_s`."""

    frames: int
    period_s: float


@dataclass(frozen=True, slots=True)
class Ramp:
    """Raise each robot's rate by `factor` every `step_s`, up to `last_hz`."""

    first_hz: float
    last_hz: float
    step_s: float = 5.0
    factor: float = 1.25

    @property
    def rates_hz(self) -> list[float]:
        """The rate of each step; at least one."""
        rates = [self.first_hz]
        while rates[-1] * self.factor <= self.last_hz * (1 + 1e-9):
            rates.append(rates[-1] * self.factor)
        return rates


Pattern: TypeAlias = Closed | Fixed | Bursts | Ramp


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """The session that every robot opens; robot i uses instruction i modulo their number.

    state: vectors whose numbers change slowly between -1 and 1.
    """

    cameras: tuple[CameraSpec, ...]
    instructions: tuple[str, ...]
    control_period_s: float
    mode: Mode | None = None
    _: KW_ONLY
    depth: int = 0
    tolerance_bins: int = 0
    max_passes: int = 0
    max_action_age_s: float | None = None
    model: str = ""
    unnorm_key: str = ""
    state: tuple[StateSpec, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """A run: warm-up, then frames are counted for `duration_s` or until each robot has offered `count` of them.

    connections: robots are assigned to them in turn. ramp_up_s: time over which the robots start. frames: a folder of
    images; None = synthetic. grace_s: how long answers are awaited after the last frame.
    """

    address: str
    session: Session
    pattern: Pattern
    _: KW_ONLY
    robots: int = 1
    connections: int = 1
    warm_up_s: float = 2.0
    duration_s: float = 30.0
    count: int | None = None
    ramp_up_s: float = 1.0
    frames: Path | None = None
    distinct: int = 64
    seed: int = 0
    grace_s: float = 2.0

    def __post_init__(self) -> None:
        if not 1 <= self.robots <= MAX_ROBOTS:
            raise ConfigError(f"robots: {self.robots} is outside 1 to {MAX_ROBOTS}")
        if not 1 <= self.connections <= self.robots:
            raise ConfigError(f"connections: {self.connections} is outside 1 to {self.robots} (the robots)")
        if self.duration_s <= 0:
            raise ConfigError("duration: must be above 0")


def parse_duration(text: str) -> float:
    """The seconds in `80ms`, `0.1s` or `2m`; ValueError for anything else, a number without a unit included."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a duration such as 80ms, 0.1s or 2m")
    return float(match[1]) * _UNITS_S[match[2]]


def parse_size(text: str) -> tuple[int, int]:
    """Width and height of `640x480`."""
    match = re.fullmatch(r"(\d{1,5})x(\d{1,5})", text.strip())
    if match is None or "0" in (match[1], match[2]):
        raise ConfigError(f"camera: {text!r} is not a size such as 640x480")
    return int(match[1]), int(match[2])


def parse_cameras(text: str, image_format: ImageFormat) -> tuple[CameraSpec, ...]:
    """The cameras in `top:640x480,wrist:320x240`."""
    pairs = [_named("cameras", part, "top:640x480,wrist:320x240") for part in text.split(",")]
    return tuple(CameraSpec(name, *parse_size(size), image_format) for name, size in pairs)


def parse_state(text: str) -> tuple[StateSpec, ...]:
    """The state vectors in `observation.state:6,gripper:1`; none in an empty text."""
    pairs = [_named("state", part, "observation.state:6") for part in text.split(",") if text]
    if not all(re.fullmatch(r"[1-9]\d{0,3}", size) for _, size in pairs):
        raise ConfigError(f"state: {text!r} has a size that is not 1 to 9999")
    return tuple(StateSpec(name=name, size=int(size)) for name, size in pairs)


def _named(option: str, part: str, example: str) -> tuple[str, str]:
    name, _, size = part.strip().rpartition(":")
    if not name:
        raise ConfigError(f"{option}: {part!r} is not NAME:SIZE, as in {example}")
    return name, size


def pattern_of(
    *,
    window: int = 1,
    rate_hz: float | None = None,
    burst: int | None = None,
    burst_period_s: float = 1.0,
    ramp: str = "",
    ramp_step_s: float = 5.0,
) -> Pattern:
    """The sending pattern that the options describe; ConfigError when they describe several."""
    asked = [name for name, given in (("rate", rate_hz), ("burst", burst), ("ramp", ramp)) if given]
    if len(asked) > 1 or (asked and window > 1):
        raise ConfigError(f"{asked[0]}: cannot be combined with another pattern (window, rate, burst, ramp)")
    if rate_hz:
        return Fixed(rate_hz)
    if burst:
        return Bursts(burst, _positive("burst-period", burst_period_s))
    if ramp:
        first_hz, last_hz = _parse_ramp(ramp)
        return Ramp(first_hz, last_hz, _positive("ramp-step", ramp_step_s))
    return Closed(window)


def period_s_of(pattern: Pattern) -> float:
    """The control period to declare for a pattern: that of its mean rate, else 50 ms."""
    match pattern:
        case Fixed():
            return 1 / pattern.rate_hz
        case Bursts():
            return pattern.period_s / pattern.frames
    return DEFAULT_PERIOD_S


def _parse_ramp(text: str) -> tuple[float, float]:
    try:
        first, last = (float(part) for part in text.split(":"))
    except ValueError:
        first, last = 0.0, 0.0
    if not 0.1 <= first <= last <= 10_000:
        raise ConfigError(f"ramp: {text!r} is not FIRST:LAST with 0.1 to 10000 Hz")
    return first, last


def _positive(name: str, seconds: float) -> float:
    if seconds <= 0:
        raise ConfigError(f"{name}: must be above 0")
    return seconds
