"""A session as live pages and operators see it: its facts, which stay as they were at open, and its status now.

Both are JSON objects. Times are Unix milliseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any
from urllib.parse import unquote

from edgeflow.contract import PolicyInputs
from edgeflow.scheduler.pace import pace_text, served_mode
from edgeflow.service.observation.requests import OpenRequest, recorded_cameras
from edgeflow.service.sessions.observers import OpenedSession
from edgeflow.service.sessions.runner import SessionRunner
from edgeflow.service.sessions.session import Session
from edgeflow_client.reasons import Reason
from edgeflow_client.types import ActionSchema, StateSpec

ACTING, HOLD, STOP, WAITING, PARKED = "acting", "hold", "stop", "waiting", "parked"
"""States of a session. WAITING: no answer of this epoch was sent yet. PARKED: its slots are free for others."""


@dataclass(frozen=True, slots=True)
class SessionWarning:
    """A warning in force."""

    kind: str
    """names, units, rate, stamps, ignored or mode."""
    text: str
    """One line for people."""


def input_warnings(request: OpenRequest, inputs: PolicyInputs) -> tuple[SessionWarning, ...]:
    """Warnings about inputs that no name or unit of the robot's confirms."""
    found = []
    for need, camera in zip(inputs.cameras, request.policy_cameras, strict=False):
        if not need.named and len(request.cameras) > 1:
            text = f"the policy does not name its camera: it gets the robot's first, {camera.name!r}"
            found.append(SessionWarning("names", text))
    elements = [name for each in request.state for name in each.elements or ("",) * each.size]
    units = [unit for each in request.state for unit in each.units or ("",) * each.size]
    taken = iter(request.policy_numbers)
    for vector in inputs.state:
        places = list(islice(taken, vector.size))
        if any(wanted and not elements[place] for wanted, place in zip(vector.elements, places, strict=False)):
            text = f"the robot does not name all numbers of {vector.name!r}: their order is not verified"
            found.append(SessionWarning("names", text))
        if any(wanted and not units[place] for wanted, place in zip(vector.units, places, strict=False)):
            expected = ", ".join(dict.fromkeys(filter(None, vector.units)))
            text = f"the robot does not state all units of {vector.name!r}; the policy takes {expected}"
            found.append(SessionWarning("units", text))
    return tuple(found)


def facts(opened: OpenedSession, *, model: str, opened_ms: int) -> dict[str, Any]:
    """The declarations of a session and its part of the device. Cameras: those whose images arrive, in order."""
    request, caller, schema = opened.request, opened.caller, opened.schema
    age_ns = request.max_action_age_ns
    return {
        "session": opened.number,
        "opened": opened_ms,
        "front": request.front,
        "principal": caller.principal,
        "peer": _address(caller.peer),
        "model": model,
        "cameras": [{"name": e.name, "width": e.width, "height": e.height} for e in recorded_cameras(request)],
        "state": [state_summary(each) for each in request.state],
        "actions": actions_summary(schema),
        "horizon": schema.horizon,
        "step_ms": schema.step_ms,
        "period_ms": request.control_period_ns / 1e6,
        "max_age_ms": None if age_ns is None else age_ns / 1e6,
        "mode": opened.plan.mode.value,
    }


def status(runner: SessionRunner, *, since_ms: int, warnings: Sequence[SessionWarning] = ()) -> dict[str, Any]:
    """The present status of a session. since_ms: of its state. `limit_ms`: the age that its next action may have."""
    session, plan = runner.session, runner.plan
    state, reason = state_of(session)
    chosen, held = session.answers.execution.now, session.holds.operator
    return {
        "mode": served_mode(plan.mode, plan.pace, plan.stages).value,
        "pace": pace_text(plan.pace),
        "epoch": session.epoch,
        "instruction": session.instruction,
        "state": state,
        "reason": reason,
        "since": since_ms,
        "operator": None if held is None else {"reason": held.text, "by": held.by, "since": held.since_ms},
        "forecast": {"rate_hz": plan.forecast.fps, "age_ms": plan.mean_age_ns / 1e6},
        "limit_ms": session.age_limit.ns / 1e6,
        "execution": "" if chosen is None else chosen.execution.value,
        "warnings": [{"kind": each.kind, "text": each.text} for each in warnings],
    }


def state_of(session: Session) -> tuple[str, str]:
    """The state of a session, and the reason of its HOLD or STOP; "" where it is under none."""
    sent = session.answers.sent
    if session.answers.invalid.fault:
        return STOP, Reason.FAULT.value
    if session.parked:
        return PARKED, "" if sent.begun else _held(sent.halt_reason)
    if sent.begun:
        return ACTING, ""
    reason = _held(sent.halt_reason)
    if reason == Reason.OPERATOR_HOLD and session.holds.operator is None:
        return WAITING, ""
    return (HOLD, reason) if reason else (WAITING, "")


def _address(peer: str) -> str:
    """The address of a peer without gRPC's scheme and port: `127.0.0.1` of `ipv4:127.0.0.1:40000`."""
    scheme, _, rest = peer.partition(":")
    return unquote(rest.rpartition(":")[0]).strip("[]") if scheme in ("ipv4", "ipv6") else peer


def _held(reason: str) -> str:
    """The reason of a HOLD; "" for a new epoch, in which the robot keeps what it was ordered before."""
    return "" if reason == Reason.EPOCH_CHANGED else str(getattr(reason, "value", reason))


def state_summary(state: StateSpec) -> dict[str, Any]:
    """A state vector: its name and size, and the names and units of its numbers where they are stated."""
    return {"name": state.name, "size": state.size, "elements": list(state.elements), "units": list(state.units)}


def actions_summary(schema: ActionSchema) -> list[dict[str, Any]]:
    """The meaning of the numbers of an action. relative: a displacement, not a position."""
    numbers = zip(schema.names, schema.units, schema.relative, strict=True)
    return [{"name": name, "unit": unit, "relative": relative} for name, unit, relative in numbers]
