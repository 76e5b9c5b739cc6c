"""What an episode leaves behind: its outcome, and when each action was taken, received and replaced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, field
from typing import Any

from edgeflow.demo.task import Outcome


@dataclass(frozen=True, slots=True)
class Acted:
    """An action that the robot obeyed; times in nanoseconds since the episode began.

    captured_ns: of the frame that it answers. passes, settled: as in FrameResult. jump_m: from the position commanded
    before to its own. kick_m_s: size of the change of the commanded velocity.
    """

    captured_ns: int
    arrived_ns: int
    passes: int
    settled: int
    jump_m: float
    kick_m_s: float

    @property
    def age_ns(self) -> int:
        """Age when it arrived."""
        return self.arrived_ns - self.captured_ns


@dataclass(frozen=True, slots=True)
class EpisodeRun:
    """Result of one episode. seconds: simulated.

    frames: captured. begun: of these, prefilled. overtaken: of these, left behind by a newer frame.
    """

    outcome: Outcome
    seconds: float
    frames: int
    begun: int
    overtaken: int
    acted: tuple[Acted, ...] = field(repr=False)

    @property
    def actions(self) -> int:
        return len(self.acted)

    @property
    def ages_ns(self) -> list[int]:
        """Age of each action when it arrived."""
        return [action.age_ns for action in self.acted]

    def as_row(self) -> list[Any]:
        """The run as a JSON value, which `from_row` reads."""
        acted = [astuple(action) for action in self.acted]
        return [self.outcome.value, self.seconds, self.frames, self.begun, self.overtaken, acted]

    @classmethod
    def from_row(cls, row: Sequence[Any]) -> EpisodeRun:
        outcome, seconds, frames, begun, overtaken, acted = row
        return cls(Outcome(outcome), seconds, frames, begun, overtaken, tuple(Acted(*action) for action in acted))
