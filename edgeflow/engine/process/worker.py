"""The one loop that owns the device: drain, run a pass of control, else a step of chat, publish."""

from __future__ import annotations

from collections.abc import Callable

from edgeflow.clock import Clock
from edgeflow.engine.chat.plane import ChatPlane
from edgeflow.engine.contracts.actions import PolicyEngine
from edgeflow.engine.process.control import ControlPlane
from edgeflow.engine.process.inbox import Inbox
from edgeflow.engine.process.profile import Pacer
from edgeflow.ipc.messages import (
    ChangeDepth,
    ChatStart,
    ChatStop,
    CloseSession,
    Message,
    OpenSession,
    Ping,
    Pong,
    ResetSession,
    SetPrefix,
    Shutdown,
    SubmitFrame,
)
from edgeflow.scheduler.cost import PassSample
from edgeflow.scheduler.gaps import Gaps
from edgeflow.scheduler.scheduler import Scheduler

CHAT_PATIENCE_NS = 250_000_000  # beside robots that leave no gap, chat gets a step this often


class Worker:
    """Turns messages of control and chat into passes and answers. One thread calls `step`; others feed `inbox`."""

    def __init__(
        self,
        engine: PolicyEngine,
        scheduler: Scheduler,
        clock: Clock,
        publish: Callable[[Message], None],
        *,
        default_unnorm_key: str = "",
        pacer: Pacer | None = None,
        chat: ChatPlane | None = None,
    ) -> None:
        self.inbox = Inbox(clock)
        self.running = True
        self._control = ControlPlane(
            engine, scheduler, clock, publish, default_unnorm_key=default_unnorm_key, pacer=pacer
        )
        self._chat = chat
        self._clock = clock
        self._publish = publish
        self._gaps = Gaps(CHAT_PATIENCE_NS)
        if chat is not None:
            chat.wake = self.inbox.wake

    def run(self) -> None:
        """Serve until control sends Shutdown or goes."""
        while self.running and not self.inbox.closed:
            if not self.step() and self.running:
                self.inbox.wait(self._idle_timeout_s())

    def step(self) -> bool:
        """One turn of the loop; False when there was nothing to run."""
        started_ns = self._clock.now_ns()
        self._drain()
        passed = self._control.step(started_ns)
        return self._step_chat(idle=not passed) or passed

    def take_passes(self) -> list[PassSample]:
        """Every pass since the last call: its shape and its time (ControlPlane.take_passes)."""
        return self._control.take_passes()

    def wake_at_ns(self) -> int | None:
        """When there will be something to run even if no message arrives."""
        pass_at_ns = self._control.wake_at_ns()
        if self._chat is None or not self._chat.busy:
            return pass_at_ns
        chat_at_ns = self._gaps.wake_at_ns()
        return chat_at_ns if pass_at_ns is None else min(pass_at_ns, chat_at_ns)

    def _step_chat(self, idle: bool) -> bool:
        """Run a step of chat if it fits before the next frame is expected, or if chat has waited too long."""
        if self._chat is None or not self._chat.busy:
            return False
        now_ns = self._clock.now_ns()
        room_ns = self._gaps.room_ns(now_ns, self._control.wake_at_ns()) if idle else 0
        if room_ns < self._chat.cost.step_ns and not self._gaps.must_run(now_ns):
            return False
        expected_ns = self._chat.step(room_ns)
        ended_ns = self._clock.now_ns()
        self._gaps.served(ended_ns, expected_ns, ended_ns - now_ns)
        return True

    def _idle_timeout_s(self) -> float | None:
        wake_at_ns = self.wake_at_ns()
        return None if wake_at_ns is None else max(0, wake_at_ns - self._clock.now_ns()) / 1e9

    def _drain(self) -> None:
        drained = self.inbox.drain()
        self._control.supersede(drained.superseded)
        for message in drained.messages:
            if isinstance(message, SubmitFrame):
                self._accept(message, drained.arrived_ns[message.session])
            else:
                self._handle(message)
        for message in drained.chat:
            if self._chat is not None:
                self._handle_chat(message, self._chat)

    def _accept(self, message: SubmitFrame, arrived_ns: int) -> None:
        self._control.accept(message, arrived_ns)
        self._gaps.arrived(message.session, arrived_ns - message.waited_ns)  # control decodes it undisturbed

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
            case ChangeDepth():
                self._control.change_depth(message.session, message.depth)
            case Ping():
                self._pong(message)
            case Shutdown():
                self.running = False

    def _handle_chat(self, message: Message, chat: ChatPlane) -> None:
        match message:
            case ChatStart():
                self._begin_chat(chat)
                chat.start(message)
            case SetPrefix():
                self._begin_chat(chat)
                chat.set_prefix(message)
            case ChatStop():
                chat.stop(message.request, "cancelled" if message.cancelled else "stop")

    def _begin_chat(self, chat: ChatPlane) -> None:
        if not chat.busy:
            self._gaps.begin(self._clock.now_ns())

    def _pong(self, message: Ping) -> None:
        counts = self._control.counts
        passes = self.take_passes()
        self._publish(
            Pong(
                nonce=message.nonce,
                passes=counts.passes,
                rows=counts.rows,
                full_passes=counts.full_passes,
                pass_ns=[sample.ns for sample in passes],
                pass_prefills=[sample.prefills for sample in passes],
                pass_decodes=[sample.decodes for sample in passes],
                eager_passes=self._control.eager_passes,
            )
        )
