"""The frames of flow policies: the sizes of answers, prepared inputs, flow times, and real-time chunking.

An answer is drawn to the chunk in execution (arXiv 2506.07339, as LeRobot computes it: the identity in place of
the Jacobian), or keeps its next rows (arXiv 2512.05964).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgeflow.contract import PROMPT, Stage, StageProgram
from edgeflow_client.errors import ConfigError, InvalidArgument
from edgeflow_client.types import MAX_HORIZON

MOST_STEPS = 100
MOST_CANDIDATES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowSizes:
    """The rows of a flow policy's answers; ConfigError for numbers out of range."""

    steps: int
    """N, Euler steps from flow time 1 (noise) to 0."""
    horizon: int
    """H, actions of a chunk."""
    dims: int
    """A, numbers of a latent action, padding included."""
    lead: int = 0
    """Rows of a step before its actions (the state token of π0); they see the prefix and themselves."""
    causal: bool = False
    """True where an action row sees only the action rows up to itself."""
    closing: int = 0
    """Rows at the end of a prefix that its other rows do not see (the state token of SmolVLA)."""
    state: int = 0
    """Numbers of the state that every step reads, 0 where the prefix has them."""
    candidates: int = 1
    """M, chunks that are denoised for each frame, each from other noise."""

    def __post_init__(self) -> None:
        for name, most in (("steps", MOST_STEPS), ("candidates", MOST_CANDIDATES), ("horizon", MAX_HORIZON)):
            if not 1 <= getattr(self, name) <= most:
                raise ConfigError(f"{name}: is {getattr(self, name)}; it must be 1 to {most}")

    @property
    def rows(self) -> int:
        """R, rows of a candidate in a step."""
        return self.lead + self.horizon

    @property
    def step_rows(self) -> int:
        """M * R, rows of a frame in a step."""
        return self.candidates * self.rows

    @property
    def state_widths(self) -> tuple[int, ...]:
        """The numbers of a slot's state: latents, target, weights, bound, clean rows, the robot's state."""
        chunk = self.horizon * self.dims
        return (self.candidates * chunk, chunk, self.horizon, 1, 1, self.state)

    @property
    def state_numbers(self) -> int:
        """All of these, in float32 (engine/flow/program.py)."""
        return sum(self.state_widths)

    @property
    def program(self) -> StageProgram:
        """The stages of an answer: the prefix, then the steps."""
        steps = Stage(rows=self.step_rows, repeats=self.steps, group=1, advances=False)
        return StageProgram((Stage(rows=PROMPT), steps))

    def time(self, step: int) -> float:
        """Flow time at which a step begins, 1 for the first: 1 + (step - 1) dt."""
        return 1.0 + (step - 1) * (-1.0 / self.steps)

    @property
    def times(self) -> Tensor:
        """[N + 1] float32: flow times of the steps, then 0, that of clean rows."""
        return torch.tensor([*(self.time(step) for step in range(1, self.steps + 1)), 0.0])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Guidance:
    """Rows of the chunk in execution that an answer must continue (real-time chunking), on the host in float32."""

    target: Tensor
    """[H, A]: normalised, zeros after its end and in padding."""
    weights: Tensor
    """[H]: how firmly each row is drawn to it, 0 to 1."""
    most: float = 10.0
    """The upper bound of the guidance weight."""
    clean: int = 0
    """Leading rows that are set to the target, at flow time 0, instead of being drawn to it (the trained mode of
    π0.5); `weights` are zeros then.
    """
    delay: int = 0
    """Rows that are expected to have passed when the answer arrives."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FlowFrame:
    """The prepared inputs of a frame: only cameras and tokens that are present."""

    pixel_values: Tensor
    """[C, 3, h, w] float32 of C present cameras."""
    prompt_ids: tuple[int, ...]
    """Text tokens without padding."""
    state: Tensor
    """[S] float32 on the host, normalised and padded."""
    noise: Tensor
    """[M, H, A] float32 on the host: x at flow time 1."""
    guidance: Guidance | None = None
    """The rows that the answer must continue; None for a fresh chunk."""


MOST_GUIDANCE = 100.0


class Schedule(str, Enum):
    """How firmly rows after the delay are drawn to the chunk in execution, up to the execution horizon.

    ZEROS: not at all. ONES: as firmly as those before. LINEAR, EXP: less and less.
    """

    ZEROS = "ZEROS"
    ONES = "ONES"
    LINEAR = "LINEAR"
    EXP = "EXP"


@dataclass(frozen=True, slots=True, kw_only=True)
class RTCSettings:
    """How a policy continues a chunk; ConfigError for what is out of range."""

    schedule: Schedule = Schedule.LINEAR
    execution_horizon: int = 10
    """The most rows that are drawn to the chunk."""
    max_guidance_weight: float = 10.0
    """The upper bound of the guidance weight."""
    trained_max_delay: int = 0
    """The longest delay that the checkpoint was trained to keep as clean rows; 0 = answers are guided instead."""

    def bridged_rows(self, horizon: int) -> int:
        """The rows of a chunk that may pass until its answer arrives, which answers bridge well."""
        return self.trained_max_delay or min(self.execution_horizon, horizon // 2)

    def __post_init__(self) -> None:
        if self.schedule not in tuple(Schedule):
            names = ", ".join(each.value for each in Schedule)
            raise ConfigError(f"rtc.schedule: is {self.schedule!r}; choose one of {names}")
        if self.execution_horizon < 1:
            raise ConfigError(f"rtc.execution_horizon: is {self.execution_horizon}; it must be at least 1")
        if not 0.0 <= self.max_guidance_weight <= MOST_GUIDANCE:
            raise ConfigError(
                f"rtc.max_guidance_weight: is {self.max_guidance_weight!r}; it must be 0 to {MOST_GUIDANCE:g}"
            )
        if self.trained_max_delay < 0:
            raise ConfigError(f"rtc.trained_max_delay: is {self.trained_max_delay}; it must be at least 0")


@dataclass(frozen=True, slots=True, eq=False)
class Previous:
    """The chunk in execution, from the row that is due at the capture of a frame."""

    values: NDArray[np.float64]
    """[n, A']: normalised; A' up to the numbers of a latent action."""
    delay: int
    """Rows that will have passed when the answer arrives."""


def schedule_weights(schedule: Schedule, delay: int, horizon: int, length: int, size: int) -> Tensor:
    """How firmly each of `size` rows is drawn to the chunk in execution: [size] float32, 0 to 1.

    1 up to the delay, then by the schedule, 0 from the horizon on; that is at most `length`, the rows that are left of
    the chunk.
    """
    end = min(horizon, length)
    start = min(delay, end)
    weights = torch.zeros(size)
    weights[:start] = 1.0
    if schedule is Schedule.ONES:
        weights[:end] = 1.0
    elif schedule is not Schedule.ZEROS:
        falling = torch.linspace(1.0, 0.0, end - start + 2)[1:-1]
        bent = falling * torch.expm1(falling) / (math.e - 1.0)
        weights[start:end] = falling if schedule is Schedule.LINEAR else bent
    return weights


def gain(time: float) -> float:
    """The guidance weight at a flow time in (0, 1], before its bound; infinite at 1."""
    tau, left = 1.0 - time, time
    return math.inf if tau <= 0.0 else left / tau * (left * left + tau * tau) / (left * left)


def guidance_of(previous: Previous, settings: RTCSettings, sizes: FlowSizes) -> Guidance | None:
    """The rows that an answer must continue; None where no row remains, or where it would keep rows and the delay is 0.

    InvalidArgument for a chunk or a delay that no answer of these sizes can continue.
    """
    values = previous.values
    _check(previous, settings, sizes)
    if not len(values) or (settings.trained_max_delay and not previous.delay):
        return None
    target = torch.zeros(sizes.horizon, sizes.dims)
    target[: len(values), : values.shape[1]] = torch.from_numpy(np.ascontiguousarray(values, np.float32))
    if settings.trained_max_delay:
        return Guidance(
            target=target, weights=torch.zeros(sizes.horizon), most=0.0, clean=previous.delay, delay=previous.delay
        )
    weights = schedule_weights(
        settings.schedule, previous.delay, settings.execution_horizon, len(values), size=sizes.horizon
    )
    return Guidance(target=target, weights=weights, most=settings.max_guidance_weight, delay=previous.delay)


def _check(previous: Previous, settings: RTCSettings, sizes: FlowSizes) -> None:
    values = previous.values
    if values.ndim != 2 or len(values) > sizes.horizon or values.shape[1] > sizes.dims:
        raise InvalidArgument(
            f"is of shape {list(values.shape)}; a chunk has up to {sizes.horizon} rows of up to {sizes.dims} numbers",
            field="previous.values",
        )
    if not np.isfinite(values).all():
        raise InvalidArgument("has a number that is not finite", field="previous.values")
    most = min(settings.trained_max_delay or sizes.horizon, sizes.horizon)
    if not 0 <= previous.delay <= most:
        raise InvalidArgument(f"is {previous.delay} rows; it must be 0 to {most}", field="previous.delay")
    if settings.trained_max_delay and previous.delay > len(values):
        raise InvalidArgument(
            f"is {previous.delay} rows; {len(values)} are left of the chunk in execution", field="previous.delay"
        )
