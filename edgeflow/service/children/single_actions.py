"""Control's side of single observations over HTTP: each becomes a session of one frame."""

from __future__ import annotations

import asyncio
from array import array
from dataclasses import replace

from edgeflow.ipc.packets import Sealed, close_all, seal
from edgeflow.service.children.checks import checked_frame, checked_open
from edgeflow.service.children.messages import (
    ACTS_AT_ONCE,
    NUMBER,
    Act,
    ActCancel,
    ActDone,
    ActRejected,
    RobotActed,
    no_room,
    rejection,
)
from edgeflow.service.children.supervisor import ChildSupervisor
from edgeflow.service.observation.requests import CheckedFrame
from edgeflow.service.observe.log import Log
from edgeflow.service.security.auth import Authenticator
from edgeflow.service.sessions.forced_faults import NO_FAULTS, ForcedFaults
from edgeflow.service.sessions.plane import ControlPlane
from edgeflow.service.sessions.single import act_once
from edgeflow_client.errors import (
    RETRY_AFTER_MS,
    EdgeflowError,
    PermissionDenied,
    ResourceExhausted,
    Unavailable,
    WorkerError,
)
from edgeflow_client.reasons import Reason

PACKET_NUMBERS = 4096  # chunk values in a packet; more are sealed
MOST_TASKS = 2 * ACTS_AT_ONCE  # including cancelled ones that have not ended yet


class SingleActions:
    """Answers the gateway's observations, at most ACTS_AT_ONCE at a time; runs on the loop."""

    def __init__(self, plane: ControlPlane, authenticator: Authenticator, log: Log) -> None:
        self._plane = plane
        self._authenticator = authenticator
        self._log = log
        self._running: dict[int, asyncio.Task[None]] = {}  # neither answered nor cancelled
        self._tasks: set[asyncio.Task[None]] = set()
        self._forwarded = 0

    def act(self, supervisor: ChildSupervisor, message: Act, descriptors: list[int]) -> None:
        """Start answering, or reject; WorkerError if a gateway may not send the message."""
        number = message.request
        try:
            if number in self._running:
                raise WorkerError("the gateway repeats the number of an observation")
            if len(self._running) >= ACTS_AT_ONCE or len(self._tasks) >= MOST_TASKS:
                supervisor.send(rejection(number, _busy()))
                return
            opened = checked_open(self._plane, message.opened)
            frame = checked_frame(self._plane, opened, descriptors, message.state, seq=1, decode_ns=message.decode_ns)
        except Unavailable as error:
            supervisor.send(rejection(number, error))
            return
        except OSError:
            supervisor.send(no_room(number))
            return
        finally:
            close_all(descriptors)
        task = self._running[number] = asyncio.create_task(
            self._answer(supervisor, replace(message, opened=opened), frame), name="act"
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def cancel(self, message: ActCancel) -> None:
        """The client is gone."""
        if (task := self._running.pop(message.request, None)) is not None:
            task.cancel()

    def cancel_all(self) -> None:
        """The gateway is gone; the next one starts with full credit."""
        for task in self._running.values():
            task.cancel()
        self._running.clear()

    async def _answer(self, supervisor: ChildSupervisor, message: Act, frame: CheckedFrame) -> None:
        """Send the answer. The credit is released first, because the gateway may use it once it has the answer."""
        try:
            answer = await self._result(message, frame)
        finally:
            if self._running.get(message.request) is asyncio.current_task():
                del self._running[message.request]
        send_answer(supervisor, answer)

    def _forced(self) -> ForcedFaults:
        """The forced faults of the next observation of a front end for robots' own clients."""
        self._forwarded += 1
        return ForcedFaults(self._plane.config.frontends.faults, self._forwarded)

    async def _result(self, message: Act, frame: CheckedFrame) -> ActDone | ActRejected:
        number = message.request
        try:
            if not self._authenticator.may_control(message.caller):
                raise PermissionDenied("the token no longer permits this", field="authorization", reason=Reason.REVOKED)
            found = await act_once(
                self._plane,
                message.opened,
                frame,
                message.caller,
                received_ns=message.received_ns,
                forced=self._forced() if message.opened.front else NO_FAULTS,
            )
        except EdgeflowError as error:
            return rejection(number, error)
        except Exception as error:
            text = f"internal error, incident {self._log.incident('act', error)}"
            return rejection(number, EdgeflowError(text))
        return ActDone(number, *found)


def send_answer(supervisor: ChildSupervisor, answer: ActDone | ActRejected) -> None:
    """Send an answer, or an error if it cannot be sent, so that the client does not wait."""
    if isinstance(answer, ActRejected):
        supervisor.send(answer)
    elif not send_numbers(supervisor, answer):
        supervisor.send(no_room(answer.request))


def send_numbers(supervisor: ChildSupervisor, answer: ActDone | RobotActed) -> bool:
    """Send an answer; the values of a long chunk cross as sealed memory. False if it cannot be sent now."""
    chunk = answer.action.chunk
    if chunk is None or len(chunk.values) <= PACKET_NUMBERS:
        return supervisor.send(answer)
    try:
        numbers = Sealed(seal(array(NUMBER, chunk.values).tobytes()))
    except OSError:
        return False
    return supervisor.send(answer.with_numbers(()), [numbers.descriptor])


def _busy() -> ResourceExhausted:
    text = "too many observations wait already"
    return ResourceExhausted(text, field="frame", reason=Reason.QUEUE_FULL, retry_after_ms=RETRY_AFTER_MS)
