"""The frames of flow policies: the sizes of answers, prepared inputs, and flow times."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from edgeflow.contract import PROMPT, Stage, StageProgram
from edgeflow_client.errors import ConfigError
from edgeflow_client.types import MAX_HORIZON

MOST_STEPS = 100
MOST_CANDIDATES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowSizes:
    """The rows of a flow policy's answers; ConfigError for numbers out of range.

    steps: N, Euler steps from flow time 1 (noise) to 0. horizon: H, actions of a chunk. dims: A, numbers of a latent
    action, padding included. lead: rows of a step before its actions (the state token of π0); they see the prefix and
    themselves. causal: an action row sees those before it, not those after it. closing: rows at the end of a prefix
    that its other rows do not see (the state token of SmolVLA). state: numbers that every step reads, 0 where the
    prefix has them. candidates: M, chunks that are denoised for each frame, each from other noise.
    """

    steps: int
    horizon: int
    dims: int
    lead: int = 0
    causal: bool = False
    closing: int = 0
    state: int = 0
    candidates: int = 1

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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Guidance:
    """Rows of the chunk being played that an answer must continue (real-time chunking), on the host in float32.

    target [H, A]: normalised, zeros behind its end and in padding. weights [H]: how firmly each row is drawn to it, 0
    to 1. most: bound of the guidance weight. clean: leading rows that are set to the target, at flow time 0, instead of
    being drawn to it (the trained mode of π0.5); `weights` are zeros then. delay: rows that will have passed when the
    answer arrives, as it was assumed.
    """

    target: Tensor
    weights: Tensor
    most: float = 10.0
    clean: int = 0
    delay: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FlowFrame:
    """The prepared inputs of a frame: only cameras and tokens that are there.

    pixel_values [C, 3, h, w] float32, C present cameras. prompt_ids: text tokens without padding. state [S] float32,
    normalised and padded. noise [M, H, A] float32: x at flow time 1. Both on the host.
    """

    pixel_values: Tensor
    prompt_ids: tuple[int, ...]
    state: Tensor
    noise: Tensor
    guidance: Guidance | None = None


@dataclass(frozen=True, slots=True)
class RowTimes:
    """Flow times of the rows of a step. values [m] float32: the different ones. of_row [n, H] int64: the index of the
    time of each row."""

    values: Tensor
    of_row: Tensor

    @classmethod
    def of(cls, time: Tensor, clean: Tensor) -> RowTimes:
        """time [n] float32: of each candidate; clean [n, H] bool: rows whose time is 0."""
        count = len(time)
        own = torch.arange(count, device=time.device)[:, None]
        return cls(torch.cat([time, time.new_zeros(1)]), torch.where(clean, count, own))
