"""Data about chunks besides their numbers. Leaf module: standard library only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True)
class Playing:
    """A row of a chunk that a robot executes."""

    seq: int
    """The frame that the chunk answers."""
    step: int


@dataclass(frozen=True, slots=True)
class Arrived:
    """The arrival of an answer."""

    seq: int
    age_ns: int
    """From the capture of frame `seq` to it, on the robot's clock."""


class Seam(str, Enum):
    """How a chunk follows the one that the robot executes, or why it is a fresh one.

    NONE: the robot executes no chunk, or nothing continues chunks here. FORGOTTEN: the chunk is of another epoch, or
    too many came since. APART: the robot's row is not the one that is due by the stamps. OVER: the chunk ends before
    the answer can be executed. REFUSED: the policy cannot continue it after such a delay.
    """

    NONE = ""
    CONTINUED = "continued"
    FORGOTTEN = "forgotten"
    APART = "apart"
    OVER = "over"
    REFUSED = "refused"


class LimitKind(str, Enum):
    """A limit on the motion of a dimension.

    BRAKING: the chunk keeps the others and could not be brought to rest within them after its last row. START: no chunk
    within them continues what was executed before, and this one begins anew.
    """

    VELOCITY = "velocity"
    ACCELERATION = "acceleration"
    JERK = "jerk"
    WORKSPACE = "workspace"
    BRAKING = "braking"
    START = "start"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limited:
    """The effect of a limit on a dimension of a chunk."""

    dimension: str
    limit: LimitKind
    beyond: float
    """By how much the policy's chunk exceeded it at most, in the unit of the limit; 0 for BRAKING and START."""
    changed: float
    """By how much all limits together moved the dimension at most, in its unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """The scores of a chunk among those that answer one frame, the lower the better."""

    score: float
    """The weighted sum of the others."""
    distance: float
    """Mean squared distance to the chunk in execution, over the rows that both have."""
    roughness: float
    """Mean squared jerk per step. Both normalised."""
    beyond: float
    """Mean excess over the limits, as a share of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkReport:
    """How a chunk came about."""

    continues: int = 0
    """The frame whose chunk it continues; 0 = none."""
    conditioned_steps: int = 0
    """Its rows that were taken to have passed when it is executed; executed later it does not fit."""
    seam: Seam = Seam.NONE
    """Why it continues none."""
    limited: tuple[Limited, ...] = ()
    """Empty where the policy's chunk kept the limits."""
    candidates: tuple[Candidate, ...] = ()
    """Empty where there was one."""
    chosen: int = 0
    """The one that was sent."""

    def is_late(self, age_ns: int, step_ns: int) -> bool:
        """True if a chunk that continues another is executed when its frame is so old, and no longer fits it."""
        return self.continues > 0 and age_ns > self.conditioned_steps * step_ns
