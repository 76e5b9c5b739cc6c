"""Control's side of operators: people with the role admin, who look at open sessions and act on them.

Everything but a change of mode happens at once, on the loop, so that a hold waits for nothing. A change of mode plans
the session again in a thread, one at a time per session.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from edgeflow.ipc.packets import Sealed, seal
from edgeflow.scheduler.turns import TokenBucket
from edgeflow.service.children.messages import Operate, Operated, no_room
from edgeflow.service.children.simulated_robot import RobotChild
from edgeflow.service.children.supervisor import ChildSupervisor
from edgeflow.service.errors import no_session
from edgeflow.service.observation.checks import check_depth, check_operator_text, check_speculation
from edgeflow.service.observation.requests import OpenRequest
from edgeflow.service.observe.log import EventLog
from edgeflow.service.security.auth import Authenticator
from edgeflow.service.sessions.frames import End
from edgeflow.service.sessions.orders import OperatorHold
from edgeflow.service.sessions.plane import ControlPlane
from edgeflow.service.sessions.runner import SessionRunner
from edgeflow.service.sessions.shown import status
from edgeflow_client.errors import (
    RETRY_AFTER_MS,
    EdgeflowError,
    FailedPrecondition,
    InvalidArgument,
    PermissionDenied,
    RequestError,
    ResourceExhausted,
)
from edgeflow_client.reasons import Reason
from edgeflow_client.types import Mode

LOOK_NS, LOOKS = 50_000_000, 20  # time between two lists, and how many at once: each describes every session
DEED_NS, DEEDS = 20_000_000, 50  # the same for actions
MOST_CHANGES = 4  # of mode, at the same time: fewer than the gateway lets wait, so that a hold finds room
ENDED_TEXT = "an operator ended the session"


class SessionOperators:
    """Answers the gateway's requests of operators; runs on the loop.

    shown: facts and status of one open session, or with None of all. address: the service's gRPC address, for the
    simulated robot.
    """

    def __init__(
        self,
        plane: ControlPlane,
        authenticator: Authenticator,
        shown: Callable[[int | None], list[dict[str, Any]]],
        address: Callable[[], str],
        log: EventLog,
    ) -> None:
        self._plane = plane
        self._authenticator = authenticator
        self._shown = shown
        self._robot = RobotChild(plane.config, address, log)
        self._log = log
        now_ns = time.monotonic_ns()
        self._looks, self._deeds = TokenBucket(LOOK_NS, LOOKS, now_ns), TokenBucket(DEED_NS, DEEDS, now_ns)
        self._changing: dict[int, asyncio.Task[None]] = {}  # by session

    def take(self, gateway: ChildSupervisor, message: Operate) -> None:
        """Do what an operator asks for, and answer."""
        with self._rejecting(gateway, message):
            self._check(message)
            if message.action == "mode":
                self._begin_change(gateway, message)
            else:
                _send(gateway, message, self._answer(message))

    async def close(self) -> None:
        """End the simulated robot and changes of mode; idempotent."""
        changing = list(self._changing.values())
        for task in changing:
            task.cancel()
        await asyncio.gather(*changing, return_exceptions=True)
        await self._robot.close()

    def _check(self, message: Operate) -> None:
        if not self._authenticator.may_operate(message.caller):
            text = "the token no longer permits this"
            raise PermissionDenied(text, field="authorization", reason=Reason.REVOKED)
        bucket = self._looks if message.action in ("list", "robot") else self._deeds
        if not bucket.take(time.monotonic_ns()):
            text = "operators ask too often"
            raise ResourceExhausted(text, reason=Reason.RATE_EXCEEDED, retry_after_ms=RETRY_AFTER_MS)

    def _answer(self, message: Operate) -> dict[str, Any]:
        """The answer to a question, or to an action that is done."""
        match message.action:
            case "list":
                return {"sessions": self._shown(None)}
            case "robot":
                return self._robot.state()
            case "start-robot" | "stop-robot":
                if message.action == "start-robot":
                    self._robot.start(message.token)
                else:
                    self._robot.stop()
                self._audit(message)
                return self._robot.state()
        runner = self._runner(message)
        self._order(runner, message)
        runner.pump()
        self._audit(message)
        return self._status(runner)

    def _order(self, runner: SessionRunner, message: Operate) -> None:
        """Act on a session at once."""
        session, limits = runner.session, self._plane.config.limits
        match message.action:
            case "hold":
                text = check_operator_text(message.text, "reason", limits, empty=True)
                since_ms = time.time_ns() // 1_000_000
                session.holds.hold_by(OperatorHold(text=text, by=message.caller.principal, since_ms=since_ms))
            case "resume" if session.holds.operator is None:
                raise FailedPrecondition("no operator holds this robot")
            case "resume":
                session.holds.resume()
            case "instruct":
                session.instruct(check_operator_text(message.text, "instruction", limits))
            case "end":
                text = check_operator_text(message.text, "reason", limits, empty=True)
                session.end(End("ABORTED", Reason.OPERATOR_ENDED, f"{ENDED_TEXT}: {text}" if text else ENDED_TEXT))
            case _:
                raise InvalidArgument("is not an action of operators", field="action")

    # A change of mode.

    def _begin_change(self, gateway: ChildSupervisor, message: Operate) -> None:
        runner = self._runner(message)
        if message.session in self._changing or len(self._changing) >= MOST_CHANGES:
            text = "the mode of this session, or of too many, is being changed"
            raise ResourceExhausted(text, reason=Reason.QUEUE_FULL, retry_after_ms=RETRY_AFTER_MS)
        request = _in_mode(runner.session.request, message)
        self._changing[message.session] = asyncio.create_task(
            self._change(gateway, message, runner, request), name="change-mode"
        )

    async def _change(
        self, gateway: ChildSupervisor, message: Operate, runner: SessionRunner, request: OpenRequest
    ) -> None:
        try:
            with self._rejecting(gateway, message):
                await self._plane.change_mode(message.session, request)
                self._audit(message)
                _send(gateway, message, self._status(runner))
        finally:
            del self._changing[message.session]

    # Parts.

    def _runner(self, message: Operate) -> SessionRunner:
        runner = self._plane.runners.get(message.session)
        if runner is None or runner.session.ended is not None:
            raise no_session(message.session)
        return runner

    def _status(self, runner: SessionRunner) -> dict[str, Any]:
        for each in self._shown(runner.session.number):
            found: dict[str, Any] = each["status"]
            return found
        return status(runner, since_ms=time.time_ns() // 1_000_000)  # a session of one frame

    def _audit(self, message: Operate, rejected: str = "") -> None:
        """Who did what to which session; never the texts. No deed is left out of the log, however many there are."""
        caller = message.caller
        deed = {
            "action": message.action,
            "session": message.session,
            "principal": caller.principal,
            "peer": caller.peer,
        }
        if rejected:
            self._log.event("operator", **deed, rejected=rejected)
        else:
            self._log.audit("operator", **deed)

    @contextlib.contextmanager
    def _rejecting(self, gateway: ChildSupervisor, message: Operate) -> Iterator[None]:
        """Answer the errors of the context."""
        try:
            yield
        except EdgeflowError as error:
            self._reject(gateway, message, error)
        except Exception as error:
            text = f"internal error, incident {self._log.incident('operator', error)}"
            self._reject(gateway, message, EdgeflowError(text))

    def _reject(self, gateway: ChildSupervisor, message: Operate, error: EdgeflowError) -> None:
        answer = Operated(request=message.request, code=error.code, text=error.text.removeprefix("open."))
        if isinstance(error, RequestError):
            field = error.field.removeprefix("open.")
            retry_ms = error.retry_after_ms or 0
            answer = replace(answer, field=field, reason=str(error.reason), retry_after_ms=retry_ms)
        self._audit(message, rejected=answer.reason or answer.code)
        gateway.send(answer)


def _in_mode(request: OpenRequest, message: Operate) -> OpenRequest:
    """The request of a session with another mode; InvalidArgument names the field at fault."""
    if message.mode not in {each.value for each in Mode}:
        text = f"must be {', '.join(each.value for each in Mode)}"
        raise InvalidArgument(text, field="mode", reason=Reason.MODE_UNKNOWN)
    mode = Mode(message.mode)
    check_depth(mode, message.depth)
    check_speculation(mode, message.tolerance_bins, message.max_passes)
    return replace(
        request,
        mode=mode,
        depth=message.depth,
        tolerance_bins=message.tolerance_bins,
        max_passes=message.max_passes,
    )


def _send(gateway: ChildSupervisor, message: Operate, answer: dict[str, Any]) -> None:
    """Send an answer, or an error if there is no memory for it."""
    try:
        sealed = Sealed(seal(json.dumps(answer).encode()))
    except OSError:
        lack = no_room(message.request)
        gateway.send(Operated(request=message.request, code=lack.code, text=lack.text, reason=lack.reason))
        return
    gateway.send(Operated(request=message.request), [sealed.descriptor])
