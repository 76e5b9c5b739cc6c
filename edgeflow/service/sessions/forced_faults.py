"""ForcedFaults faults of sessions, for testing how a robot's own client reacts to them; off unless configured."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from edgeflow.config.sections import ForcedFault
from edgeflow.service.observation.requests import CheckedFrame
from edgeflow.service.sessions.runner import SessionRunner
from edgeflow_client.errors import InvalidArgument, Unavailable
from edgeflow_client.reasons import Reason
from edgeflow_client.types import Command

TEXT = "forced by frontends.faults"


class ForcedFaults:
    """The faults of one session. session: its number in the order of opening, from 1."""

    def __init__(self, faults: Sequence[ForcedFault], session: int) -> None:
        self._faults = [each for each in faults if each.session in (0, session)]

    def receive(self, runner: SessionRunner, frame: CheckedFrame, received_ns: int | None) -> None:
        """Pass a frame to the session, or answer it with the configured fault."""
        seq = frame.seq
        fault = next((each for each in self._faults if each.first <= seq and (not each.last or seq <= each.last)), None)
        if fault is None:
            _receive(runner, frame, received_ns)
        elif fault.answer == "delay":
            asyncio.get_running_loop().call_later(fault.delay_ms / 1000, _receive, runner, frame, received_ns)
        elif fault.answer == "reject":
            runner.reject(seq, InvalidArgument(TEXT, field="observation", reason=Reason.FORCED))
        else:
            runner.session.hold(Reason.FORCED, Command(fault.answer))
            runner.reject(seq, Unavailable(TEXT, reason=Reason.FORCED))


def _receive(runner: SessionRunner, frame: CheckedFrame, received_ns: int | None) -> None:
    if runner.session.ended is None:
        runner.receive_frame(frame.seq, frame.stamp_ns, lambda: frame, received_ns)


NO_FAULTS = ForcedFaults((), 0)
