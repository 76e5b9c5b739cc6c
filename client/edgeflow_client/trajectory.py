"""Data about chunks besides their values. Leaf module: standard library only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True)
class Playing:
    """The row of a chunk that a robot executes."""

    seq: int
    """The frame that the chunk answers."""
    step: int
    start_ns: int = 0
    """The moment of its first row on the robot's clock; 0 = the capture of the frame."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """The arrival of an answer."""

    seq: int
    age_ns: int
    """Time from the capture of frame `seq` to the arrival, on the robot's clock."""


class Seam(str, Enum):
    """How a chunk follows the one in execution, or why it does not continue it.

    NONE: no chunk is in execution, or continuing chunks is off. FORGOTTEN: the chunk in execution belongs to another
    epoch, or is too many answers back. APART: the robot's row is not the one that is due by the stamps. OVER: the chunk
    ends before the answer can be executed. REFUSED: the policy cannot continue it after such a delay.
    """

    NONE = ""
    CONTINUED = "continued"
    FORGOTTEN = "forgotten"
    APART = "apart"
    OVER = "over"
    REFUSED = "refused"


class LimitKind(str, Enum):
    """A limit on the motion of a dimension.

    BRAKING: the chunk keeps the other limits, but the robot could not be stopped within them after its last row. START:
    no chunk within the limits continues the last one, and this one starts anew.
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
    """Largest excess of the policy's chunk over the limit, in the unit of the limit; 0 for BRAKING and START."""
    changed: float
    """Largest change of the dimension by all limits together, in its unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """The scores of one of the chunks for a frame; lower is better."""

    score: float
    """Weighted sum of the other scores."""
    distance: float
    """Mean squared distance to the chunk in execution over common rows, normalised."""
    roughness: float
    """Mean squared jerk per step, normalised."""
    beyond: float
    """Mean excess over the limits, relative to each limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkReport:
    """How a chunk was made."""

    continues: int = 0
    """The frame whose chunk it continues; 0 = none."""
    conditioned_steps: int = 0
    """Leading rows that were assumed to have passed when the chunk starts; if it starts later, it does not fit."""
    seam: Seam = Seam.NONE
    """How it follows the chunk in execution, or why it does not."""
    limited: tuple[Limited, ...] = ()
    """The limits that changed it; empty if the policy's chunk kept them."""
    candidates: tuple[Candidate, ...] = ()
    """All candidates; empty if the policy made only one."""
    chosen: int = 0
    """Index of the candidate that was sent."""

    def is_late(self, age_ns: int, step_ns: int) -> bool:
        """True if a continuing chunk no longer fits once its frame is `age_ns` old."""
        return self.continues > 0 and age_ns > self.conditioned_steps * step_ns
