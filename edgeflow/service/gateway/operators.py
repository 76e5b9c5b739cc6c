"""Routes of operators: open sessions listed, held, resumed, instructed and ended, and the simulated robot.

Control decides and acts; here requests are read and passed on, a few at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from edgeflow.service.children.child import ControlLink, sealed
from edgeflow.service.children.messages import Operate, Operated
from edgeflow.service.errors import error_of_code
from edgeflow.service.http.answers import CALLER
from edgeflow.service.http.bodies import JSON_TYPE, media_type, parse_json, parse_number
from edgeflow.service.http.body_reader import BodyReader
from edgeflow.service.http.middleware import DEMO_ROBOT, SESSIONS
from edgeflow.service.security.auth import shown_token
from edgeflow_client.errors import (
    RETRY_AFTER_MS,
    DeadlineExceeded,
    InvalidArgument,
    NotFound,
    RequestError,
    ResourceExhausted,
    WorkerError,
)
from edgeflow_client.reasons import Reason

AT_ONCE = 8  # requests that wait for control
ANSWER_S = 10.0  # for a change of mode beside many robots
MAX_BODY_BYTES = 4 << 10
MAX_VALUES = 16
Body = TypeVar("Body", bound=BaseModel)


class _OperatorBody(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, use_attribute_docstrings=True)


class HoldBody(_OperatorBody):
    """The request to hold a robot."""

    reason: str = ""
    """For the people at the robot: at most 200 characters."""


class ResumeBody(_OperatorBody):
    """The request to let a robot go on."""


class InstructBody(_OperatorBody):
    """The request to give a robot another instruction."""

    instruction: str
    """At most 200 characters."""


class ModeBody(_OperatorBody):
    """The request to serve a robot in another mode."""

    mode: str
    """serial, pipelined, depth, speculative or auto."""
    depth: int = Field(0, ge=0, lt=1 << 16)
    """With mode depth: frames in flight."""
    tolerance_bins: int = Field(0, ge=0, lt=1 << 16)
    """With mode speculative: how far a verified token may be from its draft."""
    max_passes: int = Field(0, ge=0, lt=1 << 16)
    """With mode speculative: passes after which a frame is answered at the latest."""


class EndBody(_OperatorBody):
    """The request to end a session."""

    reason: str = ""
    """For the people at the robot: at most 200 characters."""


BODIES: dict[str, type[_OperatorBody]] = {
    "hold": HoldBody,
    "resume": ResumeBody,
    "instruct": InstructBody,
    "mode": ModeBody,
    "end": EndBody,
}
"""The body of each action on a session."""
ROBOT_ACTIONS = {"GET": "robot", "POST": "start-robot", "DELETE": "stop-robot"}


class OperatorRequests:
    """Requests of operators that wait for control's answers; runs on the loop."""

    def __init__(self, link: ControlLink) -> None:
        self._link = link
        self._last = 0
        self._waiting: dict[int, asyncio.Future[bytes]] = {}

    async def ask(self, **asked: Any) -> bytes:
        """Control's answer as JSON, or its error. asked: fields of Operate."""
        if len(self._waiting) >= AT_ONCE:
            raise _busy()
        self._last += 1
        number = self._last
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            if not self._link.send(Operate(request=number, **asked)):
                raise _busy()
            return await asyncio.wait_for(answer, ANSWER_S)
        except asyncio.TimeoutError:
            text = "the service did not answer in time; it may still do what was asked"
            raise DeadlineExceeded(text, reason=Reason.ACT_TIMEOUT) from None
        finally:
            del self._waiting[number]

    def take(self, message: Operated, descriptors: list[int]) -> None:
        """Control answers; ignored if nobody waits."""
        answer = self._waiting.get(message.request)
        if answer is None or answer.done():
            return
        if message.code:
            error = error_of_code(message.code, message.text, message.reason, message.field)
            if isinstance(error, RequestError):
                error.retry_after_ms = message.retry_after_ms or None
            answer.set_exception(error)
            return
        try:
            answer.set_result(sealed(descriptors))
        except (OSError, WorkerError):
            answer.set_exception(_busy())


def operator_routes(requests: Callable[[], OperatorRequests]) -> list[Route]:
    """The routes; the middleware admits only operators."""
    bodies = BodyReader(MAX_BODY_BYTES, "a request of an operator")

    async def sessions(request: Request) -> Response:
        """List the open sessions: what their robots declared, and their status now."""
        return _json(await requests().ask(action="list", caller=request.scope[CALLER]))

    async def act(request: Request) -> Response:
        action = request.url.path.rpartition("/")[2]
        async with bodies.read(request) as data:
            body = _parsed(BODIES[action], request, data)
        fields = body.model_dump()
        text = fields.pop("reason", "") or fields.pop("instruction", "")
        if any("\ud800" <= each <= "\udfff" for each in text):  # no message between processes can carry them
            raise InvalidArgument("is not Unicode", field="body", reason=Reason.TEXT_BAD_CHARACTER)
        number = _number(request.path_params["session"])
        asked = {"action": action, "session": number, "caller": request.scope[CALLER], "text": text, **fields}
        return _json(await requests().ask(**asked))

    async def robot(request: Request) -> Response:
        asked: dict[str, Any] = {"action": ROBOT_ACTIONS.get(request.method, "robot"), "caller": request.scope[CALLER]}
        if request.method == "POST":
            asked["token"] = shown_token(request.headers.get("authorization", ""))
        return _json(await requests().ask(**asked))

    return [
        Route(SESSIONS, sessions, methods=["GET"]),
        *(Route(f"{SESSIONS}/{{session}}/{action}", act, methods=["POST"], name=action) for action in BODIES),
        *(Route(DEMO_ROBOT, robot, methods=[method], name=name) for method, name in ROBOT_ACTIONS.items()),
    ]


def _json(data: bytes) -> Response:
    return Response(data, media_type=JSON_TYPE, headers={"cache-control": "no-store"})


def _parsed(kind: type[Body], request: Request, data: bytes) -> Body:
    """The body of a request; one without required fields may be empty."""
    media_type(request.headers.get("content-type", JSON_TYPE if not data else ""), (JSON_TYPE,))
    try:
        return kind.model_validate(parse_json(data, MAX_VALUES) if data else {})
    except ValidationError as error:
        detail = error.errors(include_input=False, include_url=False, include_context=False)[0]
        field = ".".join(str(part)[:100] for part in detail["loc"]) or "body"
        raise InvalidArgument(detail["msg"], field=field, reason=Reason.BODY_FIELD) from None


def _number(text: str) -> int:
    """The number of a session in a path."""
    number = parse_number(text)
    if number is None:
        raise NotFound("must be the number of an open session", field="session")
    return number


def _busy() -> ResourceExhausted:
    text = "too many requests of operators wait"
    return ResourceExhausted(text, reason=Reason.QUEUE_FULL, retry_after_ms=RETRY_AFTER_MS)
