"""What a scheduler's plans are executed by. Declared here so that scheduling never imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from edgeflow.scheduler.plan import FrameRef, Pass

Observation_contra = TypeVar("Observation_contra", contravariant=True)
Ticket = TypeVar("Ticket")


@dataclass(frozen=True, slots=True)
class Sampled:
    """The K action tokens of a finished frame; finite is False when any logit behind them was not."""

    frame: FrameRef
    token_ids: tuple[int, ...]
    finite: bool


class Engine(Protocol[Observation_contra, Ticket]):
    """Runs passes in order.

    launch_ahead: how many passes may be launched before the oldest is collected: 0 where launching computes
    (CPU), 1 where launching enqueues (CUDA), so that no launch waits for a host copy.
    """

    launch_ahead: int

    def launch(self, planned: Pass, observations: Mapping[FrameRef, Observation_contra]) -> Ticket:
        """Start a pass; `observations` holds the inputs of its prefills."""
        ...

    def collect(self, ticket: Ticket) -> list[Sampled]:
        """Wait for a pass and read the frames it finished, in the order of Pass.finished."""
        ...
