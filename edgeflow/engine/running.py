"""A pass of the worker between its launch and its commit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic

from edgeflow.engine.executor import Ticket
from edgeflow.engine.stamps import Stamp
from edgeflow.scheduler.cost import PassSample
from edgeflow.scheduler.plan import Ref


@dataclass(frozen=True, slots=True)
class Running(Generic[Ref]):
    """turn_ns: when the turn of the loop began that launched it. begun: a mark before its inputs were prepared; queued:
    the device was still at work on other things after the launch. apart: only its sampling was launched in that turn.
    """

    ticket: Ticket[Ref]
    turn_ns: int
    begun: Stamp | None = None
    queued: bool = False
    apart: bool = False

    @classmethod
    def of(
        cls, ticket: Ticket[Ref], turn_ns: int, begun: Stamp | None, *, apart: bool = False, prepared: bool = False
    ) -> Running[Ref]:
        """A pass that was launched just now. prepared: its inputs were computed on the device, which counts."""
        return cls(ticket, turn_ns, begun, begun is not None and (prepared or not begun.reached), apart)

    def sample(self, prefills: int, decodes: int, now_ns: int, *, on_device: bool) -> PassSample:
        """The time of a collected pass: of its turn, or on the device: from the end of earlier work if it queued behind
        that, else from when its inputs were staged.
        """
        if not on_device:
            return PassSample(prefills, decodes, now_ns - self.turn_ns)
        ticket = self.ticket
        since = self.begun if self.queued else ticket.started
        if ticket.done is None or ticket.started is None or since is None:
            raise RuntimeError("an engine that launches ahead gave a pass without stamps")
        return PassSample(prefills, decodes, ticket.done.since_ns(since), ticket.started.recorded_ns - self.turn_ns)
