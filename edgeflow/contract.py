"""The contract of a policy with what serves it: observations, chunks, stages, paces, pass times. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from edgeflow_client.types import StateSpec

KVName = Literal["model", "int8", "fp8", "int4"]
"""KV formats as the configuration names them; `model`: in the dtype of the model."""


@dataclass(frozen=True, slots=True)
class Speculation:
    """How the drafts of a session are verified."""

    tolerance_bins: int = 0
    """How far a token may be from the draft that it replaces and still be verified, 0 to MOST_TOLERANCE_BINS; 0 gives
    the tokens of serial decoding. It applies to displacements only.
    """
    max_passes: int = 0
    """A frame leaves after so many passes even if tokens are not verified, 1 to K; 0 stands for K, after which all
    are.
    """

    def most_passes(self, stages: int) -> int:
        """Passes after which a frame leaves at the latest, 1 to K."""
        return self.max_passes or stages


@dataclass(frozen=True, slots=True)
class Pace:
    """How the frames of a session share passes, as the scheduler sees it."""

    depth: int = 1
    """Ticks per frame (scheduler/pace.py), 1 (serial) to K (pipelined)."""
    speculation: Speculation | None = None
    """None where tokens are decoded one by one; where frames draft, the depth is 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CameraNeed:
    """A camera that a policy needs."""

    name: str
    width: int = 0
    height: int = 0
    """Both: the pixels that it takes; 0 = any size."""
    named: bool = True
    """The checkpoint gives it this name. False = it is the robot's first camera, whatever that is called, or the one
    that the configuration names.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyInputs:
    """The needs of a policy, in the order in which it gets them with every observation."""

    cameras: tuple[CameraNeed, ...]
    state: tuple[StateSpec, ...] = ()

    @property
    def numbers(self) -> int:
        """The numbers of all state vectors together."""
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
    """By camera."""
    instruction: str
    state: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Vectors by name, in the policy's units."""
    stamp_ns: int = 0
    """Capture time on the robot's clock."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """The answer of a policy: `horizon` actions for consecutive moments. A single action is a chunk of horizon 1."""

    values: tuple[float, ...]
    """[horizon, dims], row by row, in the units of the schema."""
    horizon: int = 1
    step_ms: float = 0.0
    """Row i is meant for the moment i * step_ms after the capture of the frame; 0 where the horizon is 1."""

    def __post_init__(self) -> None:
        if self.horizon < 1 or len(self.values) % self.horizon:
            raise ValueError(f"{len(self.values)} numbers cannot be {self.horizon} actions")

    @property
    def dims(self) -> int:
        """Numbers of one action."""
        return len(self.values) // self.horizon

    def row(self, index: int) -> tuple[float, ...]:
        """The action for one moment."""
        return self.values[index * self.dims : (index + 1) * self.dims]

    def step_at(self, age_ms: float) -> int:
        """The row meant for the moment at which the frame is so old; the last one once the chunk is over."""
        if self.horizon == 1:
            return 0
        return max(0, min(int(age_ms / self.step_ms), self.horizon - 1))


PROMPT = 0
"""Rows of a stage that takes as many as the frame's prompt has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A part of a policy's answer to a frame, in integers."""

    rows: int
    """The rows of each of its passes; PROMPT = those of the frame's prompt."""
    repeats: int = 1
    """How often it runs."""
    group: int = 0
    """The weights that its rows use."""
    advances: bool = True
    """Each pass enters the slot after the one before (tokens); otherwise all of them enter at the place where the
    stage began and overwrite each other (denoising).
    """

    def __post_init__(self) -> None:
        if self.rows < PROMPT or self.repeats < 1 or self.group < 0:
            raise ValueError(f"no stage has {self.rows} rows, {self.repeats} times, in group {self.group}")

    @property
    def decode_rows(self) -> int:
        """The decode rows of a pass, as PassTimes counts them: a denoising step is one."""
        return self.rows if self.advances else min(self.rows, 1)


@dataclass(frozen=True, slots=True)
class StageProgram:
    """The stages of a policy's answer, in order. The first is the prompt, and no other one is."""

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
        """Rows of the longest denoising step, 0 where there is none."""
        return max((stage.rows for stage in self.stages if not stage.advances), default=0)

    @property
    def unrolled(self) -> tuple[Stage, ...]:
        """The stage of each pass."""
        return tuple(stage for stage in self.stages for _ in range(stage.repeats))


@dataclass(frozen=True, slots=True, kw_only=True)
class PassTimes:
    """Pass times in nanoseconds: on the device where launching only enqueues, else in the worker's loop."""

    stages: int
    """K."""
    prefill_ns: int
    """One prefill."""
    two_prefills_ns: int
    """The prefills of two sessions."""
    packed_ns: int
    """One prefill and K-1 decode rows; a denoising step counts as one, however many rows it has."""
    decode_ns: int
    """One decode row."""
    decodes_ns: int
    """K-1 decode rows."""
    row_ns: int = 0
    """Each row that a pass has beyond K-1 decode rows per prefill."""
    launch_ns: int = 0
    """Host time before the device can begin a pass, which is launched while the one before it runs; 0 where
    launching computes.
    """

    @property
    def launch_ahead(self) -> int:
        """Passes that may be in flight while the next one is planned."""
        return int(self.launch_ns > 0)

    def pass_ns(self, prefills: int, decodes: int) -> int:
        """The time of a pass of any shape, by the slopes of the corners, which never fall; decodes: rows that are not
        of prompts.

        Where K is 2, the corners without a prefill are one: a further row costs what it does beside a prefill, and no
        more than by itself.
        """
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
        """The times of all passes multiplied by percent / 100, none below 1 ns; launch_ns stays."""
        passes = {name: max(getattr(self, name) * percent // 100, 1) for name in (*_WITH_PREFILL, *_WITHOUT)}
        return replace(self, **passes, row_ns=self.row_ns * percent // 100)

    def corrected(self, percent: int, *, with_prefill: bool) -> PassTimes:
        """The times with those of passes with, or without, a prefill multiplied by percent / 100."""
        moved, names = self.scaled(percent), (*_WITH_PREFILL, "row_ns") if with_prefill else _WITHOUT
        return replace(self, **{name: getattr(moved, name) for name in names})


_WITH_PREFILL = ("prefill_ns", "two_prefills_ns", "packed_ns")


_WITHOUT = ("decode_ns", "decodes_ns")
