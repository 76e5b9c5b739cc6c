"""The robot-side watchdog: it returns actions while they are valid, and turns silence into HOLD.

`Watchdog` is a state machine without threads; `WatchdogThread` polls it every TICK_S.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

from edgeflow_client.actions import Action, Directive
from edgeflow_client.clock import Clock
from edgeflow_client.connection.link import Incidents
from edgeflow_client.errors import FailedPrecondition
from edgeflow_client.reasons import Reason
from edgeflow_client.timeline import PlayLog
from edgeflow_client.types import Command

TICK_S = 0.004  # HOLD follows the end of an action's validity within 20 ms, scheduling delays included
RESUME_WITHIN_NS = 2_000_000_000  # the longest silence after which a robot moves again by itself
MAX_EPOCHS = 1000  # the most that a notice may announce at once
HELD, RESUMED = "held", "resumed"  # kinds of notices
_STREAM_GONE = (Reason.DISCONNECTED, Reason.REFUSED, Reason.CLOSED)


class Watchdog:
    """Decides what a robot may do now.

    - An action is executed from its receipt until its valid_until_ns, never later; of a chunk, the row that is due.
    - A chunk that comes too late to fit the one in execution is kept in reserve. It is executed once no row of that one
      is due, if it is still valid and nothing newer came.
    - A chunk that continues another is accepted only if that one belongs to the present motion, since the last HOLD.
      Otherwise it would start a resting robot in mid-motion.
    - Actions are accepted for frames newer than the last answered one and the last `restart`, in the epoch that the
      service announced last. Each `restart` lets one more epoch follow it before it is announced. An action never
      changes which epochs are accepted.
    - HOLD ends with the next action if the interruption was shorter than RESUME_WITHIN_NS, or than resume_within_ns if
      that is shorter. If the service reported WORKER_LOST and the stream lasts, resume_within_ns applies even if it is
      longer, also after silence of any length. Otherwise, and after STOP, only a `restart` with rearm permits actions
      again. Waiting for the first action after it is not an interruption; a `restart` without rearm starts one, or
      leaves one unchanged.
    - While an operator holds the robot (reason OPERATOR_HOLD) and the stream lasts, no interruption counts: it begins
      once the operator lets go. A person decided about both.
    """

    def __init__(self, clock: Clock, resume_within_ns: int = RESUME_WITHIN_NS) -> None:
        self.plays = PlayLog()
        self._clock = clock
        self._resume_within_ns = resume_within_ns
        self._epoch = self._unannounced = 0
        self._newest_seq = 0
        self._worker_lost = False  # in this interruption
        self._interrupted_ns: int | None = None
        self._only_silence = False  # in this interruption
        self._by_operator, self._operator_text = False, ""  # an operator holds the robot, and says why
        self._now = Directive(Command.HOLD, Reason.WAITING)
        self._reserve: Action | None = None
        self._begun_seq = 0  # the frame whose action began the present motion

    def opened(self, epoch: int) -> None:
        """A new stream opened: its epochs count from here. An interruption lasts until its first action."""
        self._epoch, self._unannounced = epoch, 0

    @property
    def epoch(self) -> int:
        """The epoch of frames pushed now, also if the service has not announced it yet."""
        return self._epoch + self._unannounced

    def restart(self, last_seq: int, reason: str, *, rearm: bool) -> None:
        """Ignore actions for frames up to last_seq (new instruction, new episode) and wait for a newer one.

        rearm: the robot may move again, also after STOP or a long interruption.
        """
        held = self.directive()
        self._reserve = None
        self.plays.end(self._clock.now_ns())
        self._newest_seq = max(self._newest_seq, last_seq)
        self._unannounced += 1  # the service will announce the epoch of this restart
        if rearm:
            self._interrupted_ns, self._worker_lost = None, False
        elif held.needs_reset:
            return
        elif held.command is Command.ACT:
            self._interrupt(self._clock.now_ns())
        self._now = Directive(Command.HOLD, reason)

    def advance(self, epoch: int) -> None:
        """The service started a new epoch: an action in execution belongs to an earlier one, so hold.

        Raises FailedPrecondition for an epoch more than MAX_EPOCHS ahead, which no action could ever reach.
        """
        if epoch - self._epoch > MAX_EPOCHS:
            ahead = epoch - self._epoch
            raise FailedPrecondition(
                f"is {ahead} epochs ahead; at most {MAX_EPOCHS} are believed", field="notice.epoch"
            )
        if epoch > self._epoch:
            self._unannounced = max(self._unannounced - (epoch - self._epoch), 0)
            self._epoch = epoch
            if self.directive().command is Command.ACT:
                self.halt(Command.HOLD, Reason.NEW_EPOCH)

    def offer(self, action: Action) -> bool:
        """Take an action, to be executed or kept in reserve; False if it must not be executed."""
        held = self.directive()
        now_ns = self._clock.now_ns()
        announced = self._epoch <= action.epoch <= self._epoch + self._unannounced
        if not announced or action.seq <= self._newest_seq:
            return False
        if held.needs_reset or now_ns >= action.valid_until_ns or not self._may_follow(action, held):
            return False
        self._newest_seq = action.seq
        if action.late and held.action is not None and now_ns < held.action.over_ns:
            self._reserve = action
        else:
            self._play(action, now_ns)
        return True

    def is_reserved(self, action: Action) -> bool:
        """True while this action is kept in reserve."""
        return self._reserve is action

    def _may_follow(self, action: Action, held: Directive) -> bool:
        """True if an action continues no chunk, or one of the present motion."""
        continues = action.report.continues
        return not continues or (held.command is Command.ACT and continues >= self._begun_seq)

    def _play(self, action: Action, from_ns: int) -> None:
        self._reserve = None
        if self._now.command is not Command.ACT:
            self._begun_seq = action.seq
        self._interrupted_ns, self._worker_lost, self._by_operator = None, False, False
        self._now = Directive(Command.ACT, action=action)
        self.plays.begin(action.seq, action.timeline, from_ns, action.valid_until_ns, action.over_ns)

    def halt(self, command: Command, reason: str) -> None:
        """HOLD or STOP now, on the service's order or because the link is lost. HOLD does not replace STOP."""
        held = self.directive()
        if reason != Reason.OPERATOR_HOLD:
            self._let_go()
        self._reserve = None
        self.plays.end(self._clock.now_ns())
        self._worker_lost = reason == Reason.WORKER_LOST or (self._worker_lost and reason not in _STREAM_GONE)
        if held.command is Command.ACT:
            self._interrupt(self._clock.now_ns())
        if reason != Reason.WORKER_LOST:
            self._only_silence = False
        final = held.needs_reset and not self._is_excused
        if held.command is Command.STOP or (final and command is Command.HOLD):
            return
        self._by_operator = reason == Reason.OPERATOR_HOLD
        text = self._operator_text if self._by_operator else ""
        self._now = Directive(command, reason, needs_reset=command is Command.STOP, text=text)

    def hear(self, kind: str, text: str) -> None:
        """A notice of the service: an operator is going to hold the robot, or lets go."""
        if kind == HELD:
            self._operator_text = text
        elif kind == RESUMED:
            self._let_go()

    def _let_go(self) -> None:
        """No operator holds the robot, as far as can be heard: from now on the interruption counts."""
        if self._by_operator and self._interrupted_ns is not None:
            self._interrupted_ns = self._clock.now_ns()
        self._by_operator = False

    def directive(self) -> Directive:
        """The current directive; the same object as long as nothing changes."""
        now_ns = self._clock.now_ns()
        self._change_to_reserve(now_ns)
        action = self._now.action
        if action is not None and now_ns >= action.valid_until_ns:
            self._interrupt(action.valid_until_ns)
            self._now = Directive(Command.HOLD, Reason.SILENCE)
        elif action is not None and (due := action.due(now_ns)) is not action:
            self._now = Directive(Command.ACT, action=due)
        since_ns = self._interrupted_ns
        if since_ns is None or self._by_operator or self._now.needs_reset:
            return self._now
        if now_ns - since_ns >= self._patience_ns:
            self._now = replace(self._now, needs_reset=True)
        return self._now

    def _change_to_reserve(self, now_ns: int) -> None:
        """Execute the chunk in reserve from the end of the present one on."""
        action, reserve = self._now.action, self._reserve
        if action is None or reserve is None or now_ns < action.over_ns:
            return
        self._reserve = None
        if action.over_ns < reserve.valid_until_ns:
            self._play(reserve, action.over_ns)

    def _interrupt(self, since_ns: int) -> None:
        self._interrupted_ns, self._only_silence = since_ns, True

    @property
    def _is_excused(self) -> bool:
        """True if the loss of a worker explains the interruption, which may then last longer."""
        since_ns = self._interrupted_ns
        lasts = since_ns is not None and self._clock.now_ns() - since_ns < self._patience_ns
        return self._worker_lost and self._only_silence and lasts

    @property
    def _patience_ns(self) -> int:
        """The length of an interruption after which a reset is needed."""
        return self._resume_within_ns if self._worker_lost else min(self._resume_within_ns, RESUME_WITHIN_NS)


class WatchdogThread:
    """A thread that calls `check` every TICK_S until it is stopped, even if a check raised."""

    def __init__(self, check: Callable[[], None]) -> None:
        self._check = check
        self._incidents = Incidents("the watchdog")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="edgeflow-watchdog", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread and wait for its end."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(TICK_S):
            try:
                self._check()
            except Exception as error:
                self._incidents.unexpected(error)
