"""The contract between policies and the service: observations, chunks, stages, paces, pass times. No torch."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from edgeflow_client.errors import StartError
from edgeflow_client.types import ActionSchema, StateSpec

PassKind = Literal["prefill", "decode", "whole"]
"""Passes whose times change alike: with a prefill, without one, and those in which frames take all of their passes."""
KVName = Literal["model", "int8", "fp8", "int4"]
"""KV formats in the configuration; `model`: the dtype of the model."""


class CaptureError(StartError):
    """A pass could not be captured as a graph. The process must end; one that captures none can serve."""


@dataclass(frozen=True, slots=True)
class Speculation:
    """How the drafts of a session are verified."""

    tolerance_bins: int = 0
    """How far a token may be from the draft that it replaces and still be verified, 0 to MOST_TOLERANCE_BINS; 0 gives
    the tokens of serial decoding. It applies to displacements only.
    """
    max_passes: int = 0
    """A frame leaves after this many passes even if tokens are not verified, 1 to K; 0 = K, after which all are."""

    def most_passes(self, stages: int) -> int:
        """The most passes of a frame, 1 to K."""
        return self.max_passes or stages


@dataclass(frozen=True, slots=True)
class Pace:
    """How the frames of a session share passes."""

    depth: int = 1
    """Ticks per frame (scheduler/pace.py), 1 (serial) to K (pipelined)."""
    speculation: Speculation | None = None
    """None if tokens are decoded one by one; if frames draft, the depth is 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CameraNeed:
    """A camera that a policy needs."""

    name: str
    width: int = 0
    """Pixels per row; 0 = any width."""
    height: int = 0
    """Rows of pixels; 0 = any height."""
    side: int = 0
    """Shorter side, in pixels, to which the policy shrinks images of any size; 0 = not stated."""
    named: bool = True
    """The name comes from the checkpoint. False = it is the robot's first camera under any name, or the one that the
    configuration names.
    """


MOST_HISTORY = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyInputs:
    """The inputs that a policy needs, in the order of every observation."""

    cameras: tuple[CameraNeed, ...]
    state: tuple[StateSpec, ...] = ()
    history: int = 1
    """Observations that an answer needs, the newest included, 1 to MOST_HISTORY."""
    history_step_ms: float = 0.0
    """Time between them, as in the training's data; 0 = consecutive ones."""
    most_delay_ms: float = 0.0
    """The longest time from a capture until the first row of its answer is executed that the policy takes as an input;
    0 = it does not ask for it.
    """

    def __post_init__(self) -> None:
        if not 1 <= self.history <= MOST_HISTORY or not 0 <= self.history_step_ms < float("inf"):
            raise ValueError(
                f"a history has 1 to {MOST_HISTORY} observations, at least 0 ms apart; not {self.history}, "
                f"{self.history_step_ms} ms apart"
            )
        if not 0 <= self.most_delay_ms < float("inf"):
            raise ValueError(f"the longest delay of a policy is at least 0 ms and finite, not {self.most_delay_ms} ms")

    @property
    def numbers(self) -> int:
        """Number of values of all state vectors."""
        return sum(each.size for each in self.state)


CHANNELS = 3  # of every image: red, green, blue


@dataclass(frozen=True, slots=True)
class Image:
    """Pixels of one camera."""

    height: int
    width: int
    data: bytes | memoryview
    """height*width*3 RGB bytes, row by row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The inputs of a policy at one moment, by the policy's own names."""

    images: Mapping[str, Image]
    """Images by camera."""
    instruction: str
    state: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Vectors by name, in the policy's units."""
    stamp_ns: int = 0
    """Capture time on the robot's clock."""
    session: int = 0
    """The session, for policies with state per session; another number after each reset, change of instruction and
    HOLD.
    """
    delay_ms: float = 0.0
    """Expected time from the capture until row 0 of its answer is executed, the robot resting until then, 0 to
    PolicyInputs.most_delay_ms; 0 where rows count from the capture, and with a history, whose window has it.
    """


@dataclass(frozen=True, slots=True)
class ObservationWindow:
    """The newest observation of a session and those before it, each prepared by the policy."""

    frames: tuple[Any, ...]
    """[PolicyInputs.history], the oldest first. Where a session has fewer, the oldest one is repeated."""
    gaps_ns: tuple[int, ...]
    """[history - 1] the time between neighbours, by the robot's stamps; 0 between repeats."""
    delay_ms: float = 0.0
    """As in Observation, of the newest one."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A policy's answer: `horizon` actions for consecutive moments. A single action is a chunk of horizon 1."""

    values: tuple[float, ...]
    """[horizon, dims], row by row, in the units of the schema."""
    horizon: int = 1
    step_ms: float = 0.0
    """Row i is meant for the moment i * step_ms after the capture of the frame; 0 if the horizon is 1."""

    def __post_init__(self) -> None:
        if self.horizon < 1 or len(self.values) % self.horizon:
            raise ValueError(f"{len(self.values)} numbers cannot be {self.horizon} actions")

    @property
    def dims(self) -> int:
        """Values per action."""
        return len(self.values) // self.horizon

    @property
    def array(self) -> NDArray[np.float64]:
        """The actions [horizon, dims], a new array."""
        return np.array(self.values, np.float64).reshape(self.horizon, self.dims)

    def row(self, index: int) -> tuple[float, ...]:
        """The action for one moment."""
        return self.values[index * self.dims : (index + 1) * self.dims]

    def step_at(self, age_ms: float) -> int:
        """The row for the moment at which the frame has this age; the last row after the end of the chunk."""
        if self.horizon == 1:
            return 0
        return max(0, min(int(age_ms / self.step_ms), self.horizon - 1))


LIMIT_TOLERANCE = 1e-6  # of a dimension's range, for rounding
_MOST = sys.float_info.max


def within_limits(chunk: Chunk, schema: ActionSchema) -> bool:
    """True if a chunk has the schema's shape and step and all its values are within the limits; NaN never is."""
    if (chunk.horizon, chunk.dims, chunk.step_ms) != (schema.horizon, len(schema.low), schema.step_ms):
        return False
    bounds = list(map(_bounds, schema.low, schema.high))
    if chunk.horizon == 1:  # one action needs no array: this is several times faster
        return all(low <= value <= high for value, (low, high) in zip(chunk.values, bounds, strict=True))
    lowest, highest = np.array(bounds, np.float64).reshape(-1, 2).T
    rows = chunk.array
    return bool(((lowest <= rows) & (rows <= highest)).all())


def _bounds(low: float, high: float) -> tuple[float, float]:
    """The least and the greatest value of a dimension, both finite."""
    slack = LIMIT_TOLERANCE * (high - low) if math.isfinite(high - low) else 0.0
    return max(low - slack, -_MOST), min(high + slack, _MOST)


PROMPT = 0
"""The `rows` of a stage with all rows of the frame's prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A part of a policy's answer to a frame, in integers."""

    rows: int
    """Rows of each of its passes; PROMPT = those of the frame's prompt."""
    repeats: int = 1
    """Number of its passes."""
    group: int = 0
    """The group of weights that its rows use."""
    advances: bool = True
    """Each pass enters the slot after the one before (tokens); otherwise all of them enter at the place where the
    stage began and overwrite each other (denoising).
    """

    def __post_init__(self) -> None:
        if self.rows < PROMPT or self.repeats < 1 or self.group < 0:
            raise ValueError(f"no stage has {self.rows} rows, {self.repeats} times, in group {self.group}")

    @property
    def decode_rows(self) -> int:
        """The decode rows of a pass in the sense of PassTimes: a denoising step counts as one."""
        return self.rows if self.advances else min(self.rows, 1)


@dataclass(frozen=True, slots=True)
class StageProgram:
    """The stages of a policy's answer, in order. Only the first one is the prompt."""

    stages: tuple[Stage, ...]

    def __post_init__(self) -> None:
        prompts = [stage.rows == PROMPT for stage in self.stages]
        if not prompts or not prompts[0] or any(prompts[1:]) or self.stages[0].repeats != 1:
            raise ValueError("a stage program begins with the prompt, once")

    @classmethod
    def tokens(cls, count: int) -> StageProgram:
        """The program of an answer of `count` tokens: the prompt gives the first, each further row the next."""
        decode = (Stage(rows=1, repeats=count - 1),) if count > 1 else ()
        return cls((Stage(rows=PROMPT), *decode))

    @property
    def passes(self) -> int:
        """Passes of a frame, K for K tokens."""
        return sum(stage.repeats for stage in self.stages)

    @property
    def drafts(self) -> int:
        """Rows that can be drafted after the prompt: K-1 of K tokens, 0 of any other program."""
        prompt, *others = self.stages
        tokens = all((stage.rows, stage.group, stage.advances) == (1, prompt.group, True) for stage in others)
        return self.passes - 1 if tokens else 0

    @property
    def step_rows(self) -> int:
        """Rows of the longest denoising step; 0 without any."""
        return max((stage.rows for stage in self.stages if not stage.advances), default=0)

    @property
    def unrolled(self) -> tuple[Stage, ...]:
        """The stage of each pass."""
        return tuple(stage for stage in self.stages for _ in range(stage.repeats))


@dataclass(frozen=True, slots=True, kw_only=True)
class PassTimes:
    """Pass times in nanoseconds: on the device where launching only enqueues, else in the worker's loop."""

    stages: int
    """K, the passes of a frame."""
    prefill_ns: int
    """Time of one prefill."""
    two_prefills_ns: int
    """Time of the prefills of two sessions."""
    packed_ns: int
    """Time of one prefill and K-1 decode rows; a denoising step counts as one row."""
    decode_ns: int
    """Time of one decode row."""
    decodes_ns: int
    """Time of K-1 decode rows."""
    row_ns: int = 0
    """Time of each row beyond K-1 decode rows per prefill."""
    whole_ns: int = 0
    """Time of a frame that takes all of its passes in one; 0 where none does."""
    launch_ns: int = 0
    """Host time before the device can begin a pass, which is launched while the last one runs; 0 if launching also
    computes.
    """

    @property
    def launch_ahead(self) -> int:
        """Passes that may be in flight while the next one is planned."""
        return int(self.launch_ns > 0)

    def pass_ns(self, prefills: int, decodes: int, whole: bool = False) -> int:
        """The time of a pass of any shape, interpolated between the measured corners with slopes of at least 0.

        decodes: rows that do not belong to prompts. If K is 2, there is one corner without a prefill: a further row
        then costs as much as beside a prefill, but no more than by itself. whole: frames take all of their passes in
        it.
        """
        if whole:
            return self.whole_ns
        others = max(self.stages - 1, 1)
        if prefills == 0:
            slope = max(self.decodes_ns - self.decode_ns, 0)
            if others == 1:
                slope = min(max(self.packed_ns - self.prefill_ns, 0), self.decode_ns)
            return self.decode_ns + slope * (decodes - 1) // max(others - 1, 1)
        more = max(self.two_prefills_ns - self.prefill_ns, 0) * (prefills - 1)
        packed = min(decodes, (self.stages - 1) * prefills)
        rows = max(self.packed_ns - self.prefill_ns, 0) * packed // others
        return self.prefill_ns + more + rows + self.row_ns * (decodes - packed)

    def scaled(self, percent: int) -> PassTimes:
        """All pass times multiplied by percent / 100, at least 1 ns; launch_ns stays."""
        passes = {name: max(getattr(self, name) * percent // 100, 1) for name in (*_WITH_PREFILL, *_WITHOUT)}
        others = {name: getattr(self, name) * percent // 100 for name in ("row_ns", "whole_ns")}
        return replace(self, **passes, **others)

    def corrected(self, percent: int, *, kind: PassKind) -> PassTimes:
        """The times with only those of passes of one kind multiplied by percent / 100."""
        moved = self.scaled(percent)
        names = {"prefill": (*_WITH_PREFILL, "row_ns"), "decode": _WITHOUT, "whole": ("whole_ns",)}[kind]
        return replace(self, **{name: getattr(moved, name) for name in names})


_WITH_PREFILL = ("prefill_ns", "two_prefills_ns", "packed_ns")


_WITHOUT = ("decode_ns", "decodes_ns")
