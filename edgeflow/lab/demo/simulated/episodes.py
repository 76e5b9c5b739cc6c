"""The record of an episode: its outcome, and a log of its actions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass, field, fields
from typing import Any

from edgeflow.lab.demo.world.task import EpisodeOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Acted:
    """An executed action; times in nanoseconds since the start of the episode."""

    captured_ns: int
    """Capture time of the frame that it answers."""
    arrived_ns: int
    passes: int
    settled: int
    """Both: as in FrameResult."""
    jump_m: float
    """Distance from the position commanded before to its own."""
    kick_m_s: float
    """Size of the change in the commanded velocity."""

    @property
    def age_ns(self) -> int:
        """Age on arrival."""
        return self.arrived_ns - self.captured_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeRun:
    """Result of one episode."""

    outcome: EpisodeOutcome
    seconds: float
    """Simulated time."""
    frames: int
    """Number of captured frames."""
    begun: int
    """Number of captured frames whose prefill started."""
    overtaken: int
    """Number of started frames that a newer one overtook."""
    acted: tuple[Acted, ...] = field(repr=False)
    late: int = 0
    """Number of chunks that came too late to continue the chunk in execution as planned."""
    late_played: int = 0
    """Number of late chunks that were executed after it."""
    held_ns: int = 0
    """Time for which the SDK ordered HOLD after the first action."""

    @property
    def actions(self) -> int:
        return len(self.acted)

    @property
    def ages_ns(self) -> list[int]:
        """Age of each action on arrival."""
        return [action.age_ns for action in self.acted]

    def as_json(self) -> dict[str, Any]:
        """The run as a JSON value that `from_json` reads; the log has one row per action."""
        facts = {each.name: getattr(self, each.name) for each in fields(self)}
        return {**facts, "outcome": self.outcome.value, "acted": [astuple(action) for action in self.acted]}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> EpisodeRun:
        names = [each.name for each in fields(Acted)]
        acted = tuple(Acted(**dict(zip(names, row, strict=True))) for row in content["acted"])
        return cls(**{**content, "outcome": EpisodeOutcome(content["outcome"]), "acted": acted})
