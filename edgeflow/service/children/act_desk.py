"""Control's side of the gateway's observations: each becomes a session of one frame."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from edgeflow.ipc.packets import close_all
from edgeflow.ipc.sealed import unseal
from edgeflow.service.children.act_answers import no_room, send_answer
from edgeflow.service.children.keeper import Keeper
from edgeflow.service.children.messages import ACTS_AT_ONCE, Act, ActCancel, ActDone, ActRefused
from edgeflow.service.grpc.opening import check_request
from edgeflow.service.grpc.state import check_numbers
from edgeflow.service.observation.pixels import frame_bytes, images_of
from edgeflow.service.observation.requests import CheckedFrame, OpenRequest
from edgeflow.service.observe.lines import Log
from edgeflow.service.security.auth import Caller, Guard
from edgeflow.service.sessions.act import act_once
from edgeflow.service.sessions.events import ActionEvent
from edgeflow.service.sessions.plane import ControlPlane
from edgeflow_client.errors import (
    RETRY_AFTER_MS,
    EdgeflowError,
    PermissionDenied,
    RequestError,
    ResourceExhausted,
    Unavailable,
    WorkerError,
)
from edgeflow_client.reasons import Reason
from edgeflow_client.types import ActionSchema

MOST_TASKS = 2 * ACTS_AT_ONCE  # with those that were cancelled and have not ended yet


class ActDesk:
    """Answers the gateway's observations, at most ACTS_AT_ONCE at a time; runs on the loop."""

    def __init__(self, plane: ControlPlane, guard: Guard, log: Log) -> None:
        self._plane = plane
        self._guard = guard
        self._log = log
        self._running: dict[int, asyncio.Task[None]] = {}  # neither answered nor cancelled
        self._tasks: set[asyncio.Task[None]] = set()

    def act(self, keeper: Keeper, message: Act, descriptors: list[int]) -> None:
        """Begin to answer, or refuse; WorkerError if the message is not what a gateway sends."""
        number = message.request
        try:
            if number in self._running:
                raise WorkerError("the gateway repeats the number of an observation")
            if len(self._running) >= ACTS_AT_ONCE or len(self._tasks) >= MOST_TASKS:
                keeper.send(_refusal(number, _busy("too many observations wait already")))
                return
            opened, frame = self._checked(message, descriptors)
        except Unavailable as error:
            keeper.send(_refusal(number, error))
            return
        except OSError:
            keeper.send(no_room(number))
            return
        finally:
            close_all(descriptors)
        task = self._running[number] = asyncio.create_task(
            self._answer(keeper, replace(message, opened=opened), frame), name="act"
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def cancel(self, message: ActCancel) -> None:
        """The client is gone."""
        if (task := self._running.pop(message.request, None)) is not None:
            task.cancel()

    def cancel_all(self) -> None:
        """The gateway is gone; the next one counts from the start."""
        for task in self._running.values():
            task.cancel()
        self._running.clear()

    def _checked(self, message: Act, descriptors: list[int]) -> tuple[OpenRequest, CheckedFrame]:
        """The request as matched here, and the frame with its pixels and its state.

        WorkerError for what a gateway has not checked; Unavailable where it matched another policy.
        """
        if len(descriptors) != 1:
            raise WorkerError("an observation lacks its pixels")
        try:
            check_request(message.opened, self._plane.config.limits)
            state = check_numbers(message.state, message.opened.numbers)
        except RequestError as error:
            raise WorkerError(f"an observation that was not checked: {error.field}") from None
        opened = self._matched(message.opened)
        wanted = frame_bytes(opened)
        memory = unseal(descriptors[0], wanted)
        if len(memory) != wanted:
            raise WorkerError("an observation has the wrong number of pixels")
        frame = CheckedFrame(
            seq=1,
            stamp_ns=0,
            images=(),
            state=state,
            pixels=images_of(memory, opened),
            decode_ns=message.decode_ns,
        )
        return opened, frame

    def _matched(self, opened: OpenRequest) -> OpenRequest:
        """The request matched with the present policy, whose cameras must be those that the gateway decoded."""
        try:
            found = self._plane.matched(opened)
        except Unavailable:
            raise
        except RequestError:
            found = None
        if found is None or found.policy_cameras != opened.policy_cameras:
            text = "the policy changed while the observation was read"
            raise Unavailable(text, reason=Reason.WORKER_RESTARTING, retry_after_ms=RETRY_AFTER_MS)
        return found

    async def _answer(self, keeper: Keeper, message: Act, frame: CheckedFrame) -> None:
        """Send the answer. The credit is given back first: the gateway may use it as soon as it has the answer."""
        try:
            answer = await self._result(message, frame)
        finally:
            if self._running.get(message.request) is asyncio.current_task():
                del self._running[message.request]
        send_answer(keeper, answer)

    async def _result(self, message: Act, frame: CheckedFrame) -> ActDone | ActRefused:
        number = message.request
        caller = Caller(message.peer, message.principal, message.token)
        try:
            if not self._guard.may_control(caller):
                raise PermissionDenied("the token no longer permits this", field="authorization", reason=Reason.REVOKED)
            action, schema = await act_once(self._plane, message.opened, frame, caller, received_ns=message.received_ns)
        except EdgeflowError as error:
            return _refusal(number, error)
        except Exception as error:
            text = f"internal error, incident {self._log.incident('act', error)}"
            return _refusal(number, EdgeflowError(text))
        return _done(number, action, schema)


def _done(request: int, action: ActionEvent, schema: ActionSchema) -> ActDone:
    return ActDone(
        request=request,
        command=action.command.value,
        reason=action.reason,
        chunk=action.chunk,
        token_ids=list(action.token_ids),
        valid_for_ms=action.valid_for_ms,
        max_age_ms=action.max_age_ms,
        age_ns=action.age_ns,
        server_ns=action.server_ns,
        timings=action.timings,
        schema=schema,
        report=action.report,
    )


def _busy(text: str) -> ResourceExhausted:
    return ResourceExhausted(text, field="frame", reason=Reason.QUEUE_FULL, retry_after_ms=RETRY_AFTER_MS)


def _refusal(request: int, error: EdgeflowError) -> ActRefused:
    refused = ActRefused(request=request, code=error.code, text=error.text, field="", reason="")
    if not isinstance(error, RequestError):
        return refused
    return replace(refused, field=error.field, reason=error.reason, retry_after_ms=error.retry_after_ms or 0)
