"""The record of an episode: its outcome, and logs of its answers and commands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields
from typing import Any, Final, TypeVar

from edgeflow.lab.demo.world.task import EpisodeOutcome

HELD: Final = -1
Entry = TypeVar("Entry", "Acted", "Commanded")


@dataclass(frozen=True, slots=True, kw_only=True)
class Acted:
    """An executed answer; times in nanoseconds since the start of the episode."""

    captured_ns: int
    """Capture time of the frame that it answers."""
    arrived_ns: int
    passes: int
    settled: int
    """Both: as in FrameResult."""
    execution: str = ""
    """How it was executed, as the service said; empty = it did not."""

    @property
    def age_ns(self) -> int:
        """Age on arrival."""
        return self.arrived_ns - self.captured_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Commanded:
    """A row of an answer that was executed, or a HOLD after one; times as in Acted."""

    at_ns: int
    captured_ns: int
    """Capture time of the frame that it answers; HELD for a HOLD."""
    x: float
    y: float
    z: float
    """The commanded position of the tool in the base frame, metres."""
    towards: bool = False
    """It moves the tool nearer to where the object jumped than to where it was."""


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
    commands: tuple[Commanded, ...] = field(default=(), repr=False)
    jumped_ns: int | None = None
    """When the object jumped; None = it did not."""

    @property
    def actions(self) -> int:
        return len(self.acted)

    @property
    def ages_ns(self) -> list[int]:
        """Age of each action on arrival."""
        return [action.age_ns for action in self.acted]

    def as_json(self) -> dict[str, Any]:
        """The run as a JSON value that `from_json` reads; the logs have one row per entry."""
        facts = {each.name: getattr(self, each.name) for each in fields(self)}
        logs = {name: [astuple(each) for each in getattr(self, name)] for name in ("acted", "commands")}
        return {**facts, "outcome": self.outcome.value, **logs}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> EpisodeRun:
        facts = {**content, "outcome": EpisodeOutcome(content["outcome"])}
        return cls(
            **{**facts, "acted": _log(Acted, content["acted"]), "commands": _log(Commanded, content["commands"])}
        )


def _log(kind: type[Entry], rows: Sequence[Sequence[Any]]) -> tuple[Entry, ...]:
    """The entries of a log from their fields."""
    names = [each.name for each in fields(kind)]
    return tuple(kind(**dict(zip(names, row, strict=True))) for row in rows)
