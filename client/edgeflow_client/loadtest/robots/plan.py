"""The plan of a load test: robots, frames and duration; and how it is read from typed settings."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from itertools import count
from pathlib import Path
from types import NoneType
from typing import Any, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

from edgeflow_client.connection.wire import SessionSettings
from edgeflow_client.errors import ConfigError
from edgeflow_client.types import CameraSpec, ImageFormat, StateSpec

SECOND_NS = 1_000_000_000
DEFAULT_PERIOD_S = 0.05
COUNTS = ("window", "frames", "robots", "connections", "count", "distinct", "clients", "max_tokens")
RATES, TIMES = ("rate_hz", "first_hz", "last_hz"), ("period_s", "step_s", "duration_s")
LEAST = dict.fromkeys(COUNTS, 1) | dict.fromkeys(RATES, 0.1) | dict.fromkeys(TIMES, 1e-3) | {"factor": 1.01}
MOST = dict.fromkeys(RATES, 10_000) | {"robots": 256, "clients": 64, "frames": 10_000, "max_tokens": 8192}
"""Bounds of numbers by the last part of their key; of others 0 to ANY."""
ANY = 1e9
_UNITS_S = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|ms|s|m|h)")
_WORDS = {int: "an integer", float: "a number", bool: "true or false", tuple: "a text, or a list of texts in JSON"}
_Kind = TypeVar("_Kind")


@dataclass(frozen=True, slots=True)
class ClosedLoopPlan:
    """Send the next frame when one of `window` frames in flight has its disposition."""

    window: int = 1


@dataclass(frozen=True, slots=True)
class Fixed:
    """Send frames at a fixed rate per robot, on an absolute schedule that does not depend on the service."""

    rate_hz: float


@dataclass(frozen=True, slots=True)
class Bursts:
    """Send `frames` at once, every `period_s`."""

    frames: int
    period_s: float = 1.0


@dataclass(frozen=True, slots=True)
class Ramp:
    """Raise each robot's rate by `factor` every `step_s`, up to `last_hz`."""

    first_hz: float
    last_hz: float
    step_s: float = 5.0
    factor: float = 1.25

    def __post_init__(self) -> None:
        if self.first_hz > self.last_hz:
            raise ConfigError(f"pattern.last_hz: {self.last_hz:g} is below first_hz, {self.first_hz:g}")

    @property
    def rates_hz(self) -> list[float]:
        """The rate of each step; at least one."""
        rates = [self.first_hz]
        while rates[-1] * self.factor <= self.last_hz * (1 + 1e-9):
            rates.append(rates[-1] * self.factor)
        return rates


Pattern: TypeAlias = ClosedLoopPlan | Fixed | Bursts | Ramp


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """A run: warm-up, then frames are counted for `duration_s` or until each robot has offered `count` of them."""

    address: str
    session: SessionSettings
    """The session that every robot opens; the numbers of its state change slowly between -1 and 1."""
    pattern: Pattern
    instructions: tuple[str, ...] = ("grasp the red handle",)
    """Instructions, used in turn by the robots."""
    robots: int = 1
    connections: int = 1
    """gRPC connections, to which robots are assigned in turn."""
    warm_up_s: float = 2.0
    duration_s: float = 30.0
    count: int | None = None
    ramp_up_s: float = 1.0
    """Time over which the robots start."""
    frames: Path | None = None
    """A folder of images; None = synthetic."""
    distinct: int = 64
    seed: int = 0
    grace_s: float = 2.0
    """Time to wait for answers after the last frame."""

    def __post_init__(self) -> None:
        if self.connections > self.robots:
            raise ConfigError(f"connections: {self.connections} is more than there are robots, {self.robots}")


def instants(pattern: Fixed | Bursts | Ramp) -> Iterator[int]:
    """The instants at which frames are due, in nanoseconds from a robot's start, never decreasing.

    Each is computed from its index, so that rounding errors do not add up.
    """
    match pattern:
        case Fixed():
            return (round(index * SECOND_NS / pattern.rate_hz) for index in count())
        case Bursts():
            period_ns = pattern.period_s * SECOND_NS
            return (round(index // pattern.frames * period_ns) for index in count())
        case Ramp():
            return _ramp(pattern)


def _ramp(pattern: Ramp) -> Iterator[int]:
    step_ns = round(pattern.step_s * SECOND_NS)
    for step, rate_hz in enumerate(pattern.rates_hz):
        yield from range(step * step_ns, (step + 1) * step_ns, round(SECOND_NS / rate_hz))


def period_s_of(pattern: Pattern) -> float:
    """The control period to declare for a pattern: that of its mean rate, else 50 ms."""
    match pattern:
        case Fixed():
            return 1 / pattern.rate_hz
        case Bursts():
            return pattern.period_s / pattern.frames
    return DEFAULT_PERIOD_S


def read_plan(
    sections: Mapping[str, Mapping[str, object]],
    address: str,
    cameras: tuple[CameraSpec, ...],
    state: tuple[StateSpec, ...] = (),
) -> LoadPlan:
    """The plan that settings describe, by section ("session", "pattern", "" for the plan's own fields).

    Without `connections` every robot has its own; without a control period it is that of the pattern.
    """
    pattern = _read_pattern(sections.get("pattern", {}))
    period = {"control_period_s": period_s_of(pattern)}
    session = filled(
        SessionSettings, {**period, **sections.get("session", {})}, "session.", cameras=cameras, state=state
    )
    own = dict(sections.get("", {}))
    own.setdefault("connections", own.get("robots", 1))
    return filled(LoadPlan, own, address=address, session=session, pattern=pattern)


def plan_keys() -> list[str]:
    """The dotted keys of a plan that are set one by one."""
    kinds = [("", LoadPlan), ("session.", SessionSettings), *(("pattern.", kind) for kind in get_args(Pattern))]
    keys = [f"{section}{field.name}" for section, kind in kinds for field in fields(kind)]
    return [key for key in keys if key not in ("address", "session", "pattern", "session.cameras", "session.state")]


def filled(kind: type[_Kind], settings: Mapping[str, object], section: str = "", **objects: object) -> _Kind:
    """A dataclass of these objects, and of settings that are read by the type of their field.

    ConfigError names the key that it does not have, that it lacks, or whose value is wrong.
    """
    hints = {name: hint for name, hint in get_type_hints(kind).items() if name not in objects}
    for name in settings.keys() - hints.keys():
        raise ConfigError(f"{section}{name}: unknown key; known: {', '.join(hints)}")
    made = {name: _read(hints[name], value, f"{section}{name}") for name, value in settings.items()}
    for field in fields(kind):  # type: ignore[arg-type]
        if field.default is MISSING and field.name not in made and field.name not in objects:
            raise ConfigError(f"{section}{field.name}: is missing")
    return kind(**made, **objects)


def _read_pattern(settings: Mapping[str, object]) -> Pattern:
    """The pattern that has all of these fields."""
    names = {kind: [field.name for field in fields(kind)] for kind in get_args(Pattern)}
    for kind, known in names.items():
        if settings.keys() <= set(known):
            pattern: Pattern = filled(kind, settings, "pattern.")
            return pattern
    patterns = " | ".join(", ".join(known) for known in names.values())
    raise ConfigError(f"pattern: {', '.join(settings)} are not of one pattern; known: {patterns}")


def _read(hint: Any, value: object, key: str) -> object:
    """A value of the type of a field; text is read as it."""
    kind = get_args(hint)[0] if NoneType in get_args(hint) else hint
    if kind is not hint and value == "null":
        return None
    made = value
    if isinstance(value, str):
        try:
            made = _parsed(kind, value, key)
        except (ValueError, KeyError):
            words = "a time such as 80ms or 2s" if key.endswith("_s") else _WORDS.get(get_origin(kind) or kind, "")
            words = words or f"one of {', '.join(str(each.value) for each in kind)}"
            raise ConfigError(f"{key}: {value!r} is not {words}") from None
    name = key.rpartition(".")[2]
    if isinstance(made, int | float) and not LEAST.get(name, 0) <= made <= MOST.get(name, ANY):
        raise ConfigError(f"{key}: {made:g} is outside {LEAST.get(name, 0):g} to {MOST.get(name, ANY):g}")
    return made


def _parsed(kind: Any, text: str, key: str) -> object:
    if get_origin(kind) is tuple:
        texts = json.loads(text) if text.startswith("[") else [text]
        if not texts or not all(isinstance(each, str) for each in texts):
            raise ValueError(text)
        return tuple(texts)
    if kind is bool:
        return {"true": True, "false": False}[text]
    if kind is float and key.endswith("_s") and text[-1:].isalpha():
        return parse_duration(text)
    return kind(text)


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
