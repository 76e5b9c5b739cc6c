"""The routes of operators in the OpenAPI document: summaries, answers and failures. Loaded with the document."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import BaseModel, ConfigDict

from edgeflow.service.gateway.operators import BODIES
from edgeflow.service.http.middleware import DEMO_ROBOT, SESSIONS

OPERATOR_PATHS = (SESSIONS, DEMO_ROBOT)
OPERATOR_FAILURES = {
    400: "invalid request, or not in this state: nobody holds the robot, it is in fault, no mode keeps its age limit",
    401: "missing, unknown or expired token",
    403: "the token lacks the role admin, or the request comes from another machine or web page",
    404: "the session is not open",
    413: "request body too large",
    415: "unsupported content type or content encoding",
    429: "too many requests of operators, or the device cannot serve the session so",
    503: "the service is stopping, or no worker is ready",
    504: "no answer in time",
}
SUMMARIES = {
    "hold": ("Hold a robot", "Send HOLD until the robot is resumed. This is not an emergency stop."),
    "resume": ("Let a held robot go on", "Answer the robot's next frame again."),
    "instruct": (
        "Give an instruction",
        "Begin a new epoch with this text. It is in force until the robot gives another text than before.",
    ),
    "mode": ("Change the mode", "Plan the session again and serve its next frames in this mode, if the device can."),
    "end": ("End a session", "Send HOLD and end the robot's stream."),
}
ROBOT_SUMMARIES = {
    "GET": ("The simulated robot", "Tell whether the simulated robot runs, and why it cannot."),
    "POST": ("Start the simulated robot", "Start a simulated robot on the machine of the service, at low priority."),
    "DELETE": ("Stop the simulated robot", "Stop the simulated robot, if one runs."),
}


class _OperatorDocument(BaseModel):
    model_config = ConfigDict(extra="allow", use_attribute_docstrings=True)


class OperatorAnswer(_OperatorDocument):
    """An operator who holds a robot."""

    reason: str
    """The operator's text; may be empty."""
    by: str
    """The operator's principal; empty where no tokens are required."""
    since: int
    """Unix milliseconds."""


class StatusAnswer(_OperatorDocument):
    """The status of a session."""

    mode: str
    """The mode in which it is served."""
    pace: str
    """The same for people, with depth or tolerance."""
    epoch: int
    """Counts instructions and episodes, from 1 on."""
    instruction: str
    """The instruction in force."""
    state: str
    """acting, hold, stop, waiting for its first answer, or parked: silent, with its slots free for others."""
    reason: str
    """Why it holds or stops."""
    operator: OperatorAnswer | None
    """Who holds the robot; null if nobody does."""


class OpenSessionAnswer(_OperatorDocument):
    """An open session, as its robot declared it. More fields follow: cameras, state, actions, times."""

    session: int
    """Its number."""
    opened: int
    """Unix milliseconds."""
    front: str
    """The front end of the robot's client; empty for gRPC."""
    principal: str
    """The principal of the robot's token; empty where no tokens are required."""
    peer: str
    """The robot's address."""
    status: StatusAnswer
    """Its status now."""


class OpenSessionsAnswer(BaseModel):
    """All open sessions, but those of single observations."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    sessions: list[OpenSessionAnswer]
    """In the order of opening."""


class DemoRobotAnswer(BaseModel):
    """The simulated robot beside the service."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    running: bool
    """It runs."""
    lacking: str
    """Why none can be started; empty if one can."""


def operator_operations(
    failures_of: Callable[[dict[int, str]], dict[int | str, Any]], body_of: Callable[[type[BaseModel]], dict[str, Any]]
) -> dict[tuple[str, str], dict[str, Any]]:
    """The entries of the document by method and path. failures_of, body_of: make its parts."""
    failures = failures_of(OPERATOR_FAILURES)
    listed = {
        "summary": "List the open sessions",
        "description": "List the open sessions: what their robots declared, and their status now.",
        "response_model": OpenSessionsAnswer,
        "responses": failures,
    }
    found: dict[tuple[str, str], dict[str, Any]] = {("GET", SESSIONS): listed}
    for action, (summary, text) in SUMMARIES.items():
        entry = {"summary": summary, "description": text, "response_model": StatusAnswer, "responses": failures}
        found["POST", f"{SESSIONS}/{{session}}/{action}"] = entry | body_of(BODIES[action])
    for method, (summary, text) in ROBOT_SUMMARIES.items():
        entry = {"summary": summary, "description": text, "response_model": DemoRobotAnswer, "responses": failures}
        found[method, DEMO_ROBOT] = entry
    return found
