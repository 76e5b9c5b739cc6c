"""Single observations: each is answered in a session of one frame."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from edgeflow.service.errors import error_of_code
from edgeflow.service.observation.requests import CheckedFrame, OpenRequest
from edgeflow.service.security.auth import Caller
from edgeflow.service.sessions.forced_faults import NO_FAULTS, ForcedFaults
from edgeflow.service.sessions.frames import ActionEvent, StatusEvent
from edgeflow.service.sessions.plane import ControlPlane
from edgeflow.service.sessions.runner import SessionRunner
from edgeflow_client.errors import DeadlineExceeded
from edgeflow_client.reasons import Reason
from edgeflow_client.types import ActionSchema, Disposition, Mode

_ANSWERED_BY_HOLD = {Reason.POLICY_OUTPUT_INVALID, Reason.ACTION_TOO_OLD, Reason.OPERATOR_HOLD}


async def act_once(
    plane: ControlPlane,
    opened: OpenRequest,
    frame: CheckedFrame,
    caller: Caller,
    *,
    received_ns: int | None = None,
    forced: ForcedFaults = NO_FAULTS,
) -> tuple[ActionEvent, ActionSchema]:
    """The action for a single checked frame; raises RequestErrors.

    Without a mode, and in mode auto, it is serial: no frame before it has tokens to draft from.
    received_ns: arrival of the frame on this machine's monotonic clock; None = now. forced: faults for tests.
    """
    mode = Mode.SERIAL if opened.mode in (None, Mode.AUTO) else opened.mode
    runner = await plane.open(replace(opened, mode=mode), caller, single=True)
    timeout_ms = plane.config.timing.act_timeout_ms
    try:
        forced.receive(runner, frame, received_ns)
        action = await asyncio.wait_for(_first_action(runner), timeout_ms / 1000)
    except asyncio.TimeoutError:
        raise DeadlineExceeded(f"no action within {timeout_ms} ms", reason=Reason.ACT_TIMEOUT) from None
    finally:
        asyncio.get_running_loop().call_soon(plane.close, runner)  # the answer goes first
    return action, runner.session.robot_schema


async def _first_action(runner: SessionRunner) -> ActionEvent:
    while events := await runner.next_events():
        for event in events:
            if isinstance(event, StatusEvent) and event.disposition in (Disposition.REJECTED, Disposition.DROPPED):
                if event.reason not in _ANSWERED_BY_HOLD:
                    raise error_of_code(event.code, event.text, event.reason, event.field)
            elif isinstance(event, ActionEvent) and (event.seq or event.reason in _ANSWERED_BY_HOLD):
                return event
    end = runner.session.ended
    raise error_of_code(end.code if end else "INTERNAL", end.text if end else "", Reason.SESSION_ENDED)
