"""The one loop that owns the device: drain, launch the next pass of control or chat, commit the one before."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from edgeflow.config.sections import TrajectoryConfig
from edgeflow.contract import PassTimes
from edgeflow.engine.chat.loop import ChatLoop
from edgeflow.engine.control.engine import PassEngine
from edgeflow.engine.control.loop import ControlLoop
from edgeflow.engine.control.profile import Pacer
from edgeflow.engine.executor import Running
from edgeflow.ipc.chat_messages import ChatStart, ChatStop, SetPrefix
from edgeflow.ipc.messages import (
    ChangePace,
    CloseSession,
    Message,
    OpenSession,
    Ping,
    ResetSession,
    Shutdown,
    SubmitFrame,
)
from edgeflow.scheduler.cost import ChatTurns, CostModel, Gaps, PassSample
from edgeflow.scheduler.plan import FrameRef
from edgeflow.scheduler.scheduler import Scheduler
from edgeflow.scheduler.turns import EarlyFrames
from edgeflow.worker.inbox import Inbox
from edgeflow_client.clock import Clock

if TYPE_CHECKING:
    from edgeflow.engine.control.recording import PassRecorder

CHAT_PATIENCE_NS = 250_000_000  # beside robots that leave no gap, chat gets a step this often


class Worker:
    """Turns messages of control and chat into passes and answers. One thread calls `step`; others feed `inbox`.

    observer: records the passes of control. timed: as in ControlLoop.
    """

    def __init__(
        self,
        engine: PassEngine,
        scheduler: Scheduler,
        clock: Clock,
        publish: Callable[[Message], None],
        *,
        default_unnorm_key: str = "",
        pacer: Pacer | None = None,
        chat: ChatLoop | None = None,
        times: PassTimes | None = None,
        trajectory: TrajectoryConfig | None = None,
        observer: PassRecorder | None = None,
        timed: bool = False,
    ) -> None:
        self.inbox = Inbox(clock)
        self.running = True
        make = ControlLoop if observer is None else observer.loop
        self._control = make(
            engine,
            scheduler,
            clock,
            publish,
            default_unnorm_key=default_unnorm_key,
            pacer=pacer,
            trajectory=trajectory,
            timed=timed,
        )
        self._chat = chat
        self._clock = clock
        self._publish = publish
        self._cost = CostModel(times) if times is not None else None
        self._gaps = Gaps(CHAT_PATIENCE_NS)
        if self._cost is not None:
            scheduler.early = EarlyFrames(self._gaps, self._cost)
        self._early = scheduler.early
        self._running: deque[tuple[Running[Any], Callable[[Running[Any]], None]]] = deque()
        self._turns = ChatTurns(self._gaps, chat.times, chat.chunk) if chat is not None else None
        if chat is not None:
            chat.wake = self.inbox.wake

    def run(self) -> None:
        """Serve until control sends Shutdown or is gone."""
        while self.running and not self.inbox.closed:
            if not self.step() and self.running:
                at_ns = self.wake_at_ns()
                self.inbox.wait(None if at_ns is None else max(0, at_ns - self._clock.now_ns()) / 1e9)

    def step(self) -> bool:
        """One iteration of the loop; False if there was nothing to run."""
        turn_ns = self._clock.now_ns()
        self._drain()
        if self._running and self._control.awaits_answer(turn_ns):
            self._commit(0)  # the next frame may continue the answer of a pass in flight
        control = self._control.launch(turn_ns)
        if control is not None:
            expected_ns = self._cost.times.pass_ns(*control.ticket.planned.shape) if self._cost is not None else 0
            self._launched(control, self._commit_control, expected_ns)
        stepped = self._step_chat(idle=control is None and not self._control.holds_frames)
        if control is None and not stepped:
            return self._commit(0)  # True if a pass ended, which may have made new work
        return True

    def take_passes(self) -> list[PassSample]:
        """As in ControlLoop."""
        return self._control.take_passes()

    def wake_at_ns(self) -> int | None:
        """The time at which there will be something to run even if no message arrives."""
        pass_at_ns = self._control.wake_at_ns()
        if self._chat is None or not self._chat.busy:
            return pass_at_ns
        chat_at_ns = self._gaps.wake_at_ns(self._clock.now_ns())
        return chat_at_ns if pass_at_ns is None else min(pass_at_ns, chat_at_ns)

    def _step_chat(self, idle: bool) -> bool:
        """Launch a pass of chat if it fits before the next frame is expected, or if chat has waited too long."""
        chat, now_ns = self._chat, self._clock.now_ns()
        if chat is None or self._turns is None or not chat.busy:
            return False
        rows = self._turns.rows(now_ns, idle=idle, pass_at_ns=self._control.wake_at_ns())
        if rows == 0:
            return False
        self._commit_reached()  # finished actions leave before the host prepares a pass of chat
        self._gaps.begin(now_ns)
        running = chat.launch(rows, now_ns)
        planned = chat.masked if running is None else running.ticket.planned
        expected_ns = 0 if planned is None else self._turns.expected_ns(planned.several, planned.single)
        if running is None:
            self._commit(0)
            self._gaps.launched(self._clock.now_ns(), expected_ns)
        else:
            self._launched(running, self._commit_chat, expected_ns)
        return True

    def _commit_control(self, running: Running[FrameRef]) -> None:
        sample = self._control.commit(running)
        if self._early is not None:
            self._early.observe(sample, self._clock.now_ns())

    def _commit_chat(self, running: Running[int]) -> None:
        if self._chat is not None and self._turns is not None:
            sample = self._chat.commit(running)
            self._turns.served(self._clock.now_ns(), sample)

    def _launched(self, running: Running[Any], commit: Callable[[Running[Any]], None], expected_ns: int) -> None:
        """Record a pass, and commit earlier ones beyond the number that may be in flight."""
        self._running.append((running, commit))
        self._gaps.launched(self._clock.now_ns(), expected_ns)
        self._commit(self._control.ahead)

    def _commit_reached(self) -> None:
        """Commit the passes that the device has finished."""
        while self._running and (done := self._running[0][0].ticket.done) is not None and done.reached:
            self._commit(len(self._running) - 1)

    def _commit(self, ahead: int) -> bool:
        """Commit passes until at most `ahead` are in flight; False if there was none to commit."""
        found = len(self._running) > ahead
        while len(self._running) > ahead:
            running, commit = self._running.popleft()
            commit(running)
        if not self._running:
            self._gaps.finished()
        return found

    def _drain(self) -> None:
        drained = self.inbox.drain()
        self._control.supersede(drained.superseded)
        for message in drained.messages:
            if isinstance(message, SubmitFrame) and message.seen_only:
                self._control.supersede([message])
            elif isinstance(message, SubmitFrame):
                arrived_ns = drained.arrived_ns[message.session]
                self._control.accept(message, arrived_ns)
                self._gaps.arrived(message.session, arrived_ns - message.waited_ns)  # control decodes it undisturbed
            else:
                self._handle(message)
        for message in drained.chat:
            if self._chat is not None:
                self._handle_chat(message, self._chat)

    def _handle(self, message: Message) -> None:
        match message:
            case OpenSession():
                if self._control.open(message):
                    self._gaps.open(message.session, message.period_ns)
            case ResetSession():
                self._control.reset(message)
            case CloseSession():
                self._control.close(message)
                self._gaps.close(message.session)
            case ChangePace():
                self._control.change_pace(message)
            case Ping():
                self._publish(self._control.pong(message.nonce))
            case Shutdown():
                self.running = False

    def _handle_chat(self, message: Message, chat: ChatLoop) -> None:
        match message:
            case ChatStart():
                self._begin_chat(chat)
                chat.start(message)
            case SetPrefix():
                self._begin_chat(chat)
                chat.set_prefix(message)
            case ChatStop():
                chat.stop(message.request, "cancelled" if message.cancelled else "stop")

    def _begin_chat(self, chat: ChatLoop) -> None:
        if chat.idle:
            self._gaps.begin(self._clock.now_ns())
