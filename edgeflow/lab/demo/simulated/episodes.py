"""The record of an episode: its outcome, and a log of its actions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass, field, fields
from enum import Enum
from typing import Any

from edgeflow.lab.demo.world.task import EpisodeOutcome


class Execution(str, Enum):
    """How a robot executes chunks.

    RTC: while it waits for the next one, which continues the chunk in execution (real-time chunking). FRESH: likewise,
    but every chunk begins anew. SYNCHRONOUS: it rests while it waits.
    """

    RTC = "rtc"
    FRESH = "fresh"
    SYNCHRONOUS = "synchronous"


@dataclass(frozen=True, slots=True, kw_only=True)
class Acted:
    """An action that the robot obeyed; times in nanoseconds since the episode began."""

    captured_ns: int
    """The captured of the frame that it answers."""
    arrived_ns: int
    passes: int
    settled: int
    """Both: as in FrameResult."""
    jump_m: float
    """From the position commanded before to its own."""
    kick_m_s: float
    """Size of the change of the commanded velocity."""

    @property
    def age_ns(self) -> int:
        """Age when it arrived."""
        return self.arrived_ns - self.captured_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeRun:
    """Result of one episode."""

    outcome: EpisodeOutcome
    seconds: float
    """Simulated."""
    frames: int
    """Captured."""
    begun: int
    """The begun of these, prefilled."""
    overtaken: int
    """Those of them that a newer frame overtook."""
    acted: tuple[Acted, ...] = field(repr=False)
    late: int = 0
    """Chunks that did not fit what was executed."""
    late_played: int = 0
    """The late ones of these that were executed once that was over."""

    @property
    def actions(self) -> int:
        return len(self.acted)

    @property
    def ages_ns(self) -> list[int]:
        """Age of each action when it arrived."""
        return [action.age_ns for action in self.acted]

    def as_json(self) -> dict[str, Any]:
        """The run as a JSON value, which `from_json` reads; the log is one row per action."""
        facts = {each.name: getattr(self, each.name) for each in fields(self)}
        return {**facts, "outcome": self.outcome.value, "acted": [astuple(action) for action in self.acted]}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> EpisodeRun:
        names = [each.name for each in fields(Acted)]
        acted = tuple(Acted(**dict(zip(names, row, strict=True))) for row in content["acted"])
        return cls(**{**content, "outcome": EpisodeOutcome(content["outcome"]), "acted": acted})
