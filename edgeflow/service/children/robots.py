"""Control's side of the robots' process: the sessions of robots that speak other protocols than gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from edgeflow.ipc.packets import close_all
from edgeflow.service.children.checks import checked_frame, checked_open
from edgeflow.service.children.messages import (
    CloseRobot,
    FromRobots,
    ObserveRobot,
    OpenRobot,
    ResetRobot,
    RobotActed,
    RobotOpened,
    RobotRejected,
)
from edgeflow.service.children.single_actions import send_numbers
from edgeflow.service.children.supervisor import ChildSupervisor
from edgeflow.service.observe.log import Log
from edgeflow.service.security.auth import Authenticator
from edgeflow.service.sessions.forced_faults import ForcedFaults
from edgeflow.service.sessions.frames import ActionEvent, End, Event, StatusEvent
from edgeflow.service.sessions.plane import ControlPlane
from edgeflow.service.sessions.runner import SessionRunner
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
from edgeflow_client.types import Command, Disposition

MOST_SESSIONS = 512  # per process, including those that are being opened
RESEND_S = 0.005  # between attempts to send answers again
Answer = RobotOpened | RobotActed | RobotRejected


class RobotSessions:
    """Sessions by the robots' process's numbers; runs on the loop.

    They are admitted, planned, observed and ended like every robot's.
    """

    def __init__(self, plane: ControlPlane, authenticator: Authenticator, log: Log) -> None:
        self._plane = plane
        self._authenticator = authenticator
        self._log = log
        self._opened = 0  # since the start
        self._robots: dict[int, _Robot] = {}

    def take(self, supervisor: ChildSupervisor, message: FromRobots, descriptors: list[int]) -> None:
        """Handle a message; WorkerError if the robots' process may not send it."""
        try:
            match message:
                case OpenRobot():
                    self._open(supervisor, message)
                case ObserveRobot():
                    if (robot := self._robots.get(message.session)) is not None:
                        robot.observe(message, descriptors)
                case ResetRobot():
                    if (robot := self._robots.get(message.session)) is not None:
                        robot.reset()
                case CloseRobot():
                    if (robot := self._robots.pop(message.session, None)) is not None:
                        robot.close()
        finally:
            close_all(descriptors)

    def lost_message(self, supervisor: ChildSupervisor, message: ObserveRobot) -> None:
        """An observation arrived without its pixels, because this process has no free descriptor for them."""
        text = "no memory for another observation"
        error = ResourceExhausted(text, reason=Reason.QUEUE_FULL, retry_after_ms=RETRY_AFTER_MS)
        supervisor.send(_rejected(message.session, message.seq, error))

    def lost(self) -> None:
        """The robots' process is gone and with it all connections: end their sessions."""
        robots, self._robots = self._robots, {}
        for robot in robots.values():
            robot.close()

    def _open(self, supervisor: ChildSupervisor, message: OpenRobot) -> None:
        if message.session in self._robots:
            raise WorkerError("the robots' process repeats the number of a session")
        if len(self._robots) >= MOST_SESSIONS:
            text = "too many sessions are open or being opened"
            busy = ResourceExhausted(text, reason=Reason.QUEUE_FULL, retry_after_ms=RETRY_AFTER_MS)
            supervisor.send(_rejected(message.session, 0, busy))
            return
        self._opened += 1
        forced = ForcedFaults(self._plane.config.frontends.faults, self._opened)
        self._robots[message.session] = _Robot(
            message,
            plane=self._plane,
            authenticator=self._authenticator,
            log=self._log,
            supervisor=supervisor,
            forced=forced,
            on_end=self._forget,
        )

    def _forget(self, robot: _Robot) -> None:
        if self._robots.get(robot.number) is robot:
            del self._robots[robot.number]


class _Robot:
    """One session, from the request to open it until it ends or its connection is gone."""

    def __init__(
        self,
        message: OpenRobot,
        *,
        plane: ControlPlane,
        authenticator: Authenticator,
        log: Log,
        supervisor: ChildSupervisor,
        forced: ForcedFaults,
        on_end: Callable[[_Robot], None],
    ) -> None:
        self.number = message.session
        self._plane = plane
        self._authenticator = authenticator
        self._log = log
        self._supervisor = supervisor
        self._process = supervisor.restarts  # a later one knows nothing of this session
        self._forced = forced
        self._on_end = on_end
        self._runner: SessionRunner | None = None
        self._unsent: list[Answer] = []
        self._resend: asyncio.TimerHandle | None = None
        self._seq = 0
        self._closed = False
        self._task = asyncio.create_task(self._run(message), name="robot")

    def observe(self, message: ObserveRobot, descriptors: list[int]) -> None:
        """Offer an observation to the session."""
        runner = self._runner
        if runner is None or runner.session.ended is not None or self._closed:
            return  # the message with its end is on the way
        if message.seq <= self._seq:
            raise WorkerError("the robots' process repeats the number of an observation")
        self._seq = message.seq
        try:
            frame = checked_frame(
                self._plane,
                runner.session.request,
                descriptors,
                message.state,
                seq=message.seq,
                decode_ns=message.decode_ns,
                instruction=message.instruction,
                stamp_ns=message.received_ns,
            )
        except OSError:
            text = "no memory for another observation"
            self._send(_rejected(self.number, message.seq, ResourceExhausted(text, reason=Reason.QUEUE_FULL)))
            return
        self._forced.receive(runner, frame, message.received_ns)

    def reset(self) -> None:
        """Begin a new epoch."""
        if self._runner is not None:
            self._runner.reset("")

    def close(self) -> None:
        """The connection is gone."""
        self._closed = True
        self._task.cancel()

    async def _run(self, message: OpenRobot) -> None:
        try:
            runner = self._runner = await self._open(message)
            try:
                await self._serve(runner)
            finally:
                self._plane.close(runner)
        except EdgeflowError as error:
            self._send(_rejected(self.number, 0, error))
        except Exception as error:
            text = f"internal error, incident {self._log.incident('robot', error)}"
            self._send(_rejected(self.number, 0, EdgeflowError(text)))
        finally:
            if self._closed and self._resend is not None:
                self._resend.cancel()
            self._on_end(self)

    async def _open(self, message: OpenRobot) -> SessionRunner:
        if not self._authenticator.may_control(message.caller):
            raise PermissionDenied("the token no longer permits this", field="authorization", reason=Reason.REVOKED)
        return await self._plane.open(checked_open(self._plane, message.opened), message.caller)

    async def _serve(self, runner: SessionRunner) -> None:
        self._send(RobotOpened(self.number))
        while events := await runner.next_events():
            for answer in answers_of(self.number, events):
                self._send(answer)
        end = runner.session.ended or End("CANCELLED", Reason.CLIENT_GONE)
        self._send(
            RobotRejected(
                session=self.number,
                seq=0,
                code=end.code,
                text=end.text,
                field="",
                reason=end.reason.value,
                command="" if end.code == "OK" else end.command.value,
            )
        )

    def _send(self, answer: Answer) -> None:
        """Send an answer; while the process does not read, the newest answer of an observation waits."""
        if isinstance(answer, RobotActed):
            self._unsent = [each for each in self._unsent if not isinstance(each, RobotActed)]
        self._unsent.append(answer)
        if self._resend is None:
            self._flush()

    def _flush(self) -> None:
        self._resend = None
        while self._unsent and self._supervisor.restarts == self._process:
            answer = self._unsent[0]
            sent = (
                send_numbers(self._supervisor, answer)
                if isinstance(answer, RobotActed)
                else self._supervisor.send(answer)
            )
            if not sent:
                if self._supervisor.is_running and self._supervisor.restarts == self._process and not self._closed:
                    self._resend = asyncio.get_running_loop().call_later(RESEND_S, self._flush)
                return
            del self._unsent[0]


def answers_of(number: int, events: list[Event]) -> list[Answer]:
    """The answers for the robots' process: the action of each frame, or the reason that it gets none."""
    safe = next((each for each in events if isinstance(each, ActionEvent) and each.command is not Command.ACT), None)
    answers: list[Answer] = []
    for event in events:
        if isinstance(event, ActionEvent) and event.command is Command.ACT:
            answers.append(RobotActed(number, event))
        elif isinstance(event, StatusEvent) and event.disposition is not Disposition.ACTED:
            answers.append(
                RobotRejected(
                    session=number,
                    seq=event.last_seq or event.seq,
                    code=event.code or "ABORTED",
                    text=event.text,
                    field=event.field,
                    reason=event.reason,
                    command=_command(event, safe),
                )
            )
    return answers


def _command(event: StatusEvent, safe: ActionEvent | None) -> str:
    """The command for a robot whose frame gets no action; "" if the frame itself was at fault."""
    if event.reason == Reason.FAULT:
        return Command.STOP.value
    if safe is not None:
        return safe.command.value
    return "" if event.disposition is Disposition.REJECTED else Command.HOLD.value


def _rejected(session: int, seq: int, error: EdgeflowError) -> RobotRejected:
    rejected = RobotRejected(session=session, seq=seq, code=error.code, text=error.text, field="", reason="")
    if not isinstance(error, RequestError):
        return rejected
    command = Command.HOLD.value if isinstance(error, Unavailable) else ""
    retry_ms = error.retry_after_ms or 0
    return replace(rejected, field=error.field, reason=error.reason, retry_after_ms=retry_ms, command=command)
