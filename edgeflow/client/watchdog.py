"""The robot-side watchdog: actions are handed out while they are valid, and silence becomes HOLD.

`Watchdog` is a state machine without threads; `WatchdogThread` polls it every TICK_S.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from edgeflow.client.actions import Action, Directive
from edgeflow.clock import Clock
from edgeflow.reasons import Reason
from edgeflow.types import Command

TICK_S = 0.004  # HOLD follows the end of an action's validity within 20 ms, scheduling delays included
RESUME_WITHIN_NS = 2_000_000_000


class Watchdog:
    """Decides what a robot may do now.

    - An action is handed out from its receipt until its valid_until_ns, never later.
    - Only actions of the newest epoch are accepted, for frames newer than the last answered one and the last `restart`.
    - HOLD ends with the next action if the interruption was shorter than resume_within_ns; otherwise, and after STOP,
      only a `restart` with rearm lets actions through again. Waiting for the first action after a `restart` does not
      count as an interruption.
    """

    def __init__(self, clock: Clock, resume_within_ns: int = RESUME_WITHIN_NS) -> None:
        self._clock = clock
        self._resume_within_ns = resume_within_ns
        self._epoch = 0
        self._newest_seq = 0
        self._interrupted_ns: int | None = None
        self._now = Directive(Command.HOLD, Reason.WAITING)

    def opened(self, epoch: int) -> None:
        """A new stream opened: its epochs count from here. An interruption lasts until its first action."""
        self._epoch = epoch

    def restart(self, last_seq: int, reason: str, *, rearm: bool) -> None:
        """Ignore actions for frames up to last_seq (new instruction, new episode) and wait for a newer one.

        rearm: the robot may move again, also after STOP or a long interruption.
        """
        held = self.directive()
        self._newest_seq = max(self._newest_seq, last_seq)
        if rearm or not held.needs_reset:
            self._interrupted_ns = None
            self._now = Directive(Command.HOLD, reason)

    def advance(self, epoch: int) -> None:
        """The service started a new epoch: an action being executed belongs to an old one, so hold."""
        if epoch > self._epoch:
            self._epoch = epoch
            if self.directive().command is Command.ACT:
                self.halt(Command.HOLD, Reason.NEW_EPOCH)

    def offer(self, action: Action) -> bool:
        """Take an action; False if it must not be executed."""
        held = self.directive()
        now_ns = self._clock.now_ns()
        if action.epoch < self._epoch or action.seq <= self._newest_seq:
            return False
        if held.needs_reset or now_ns >= action.valid_until_ns:
            return False
        self._epoch, self._newest_seq = action.epoch, action.seq
        self._interrupted_ns = None
        self._now = Directive(Command.ACT, action=action)
        return True

    def halt(self, command: Command, reason: str) -> None:
        """HOLD or STOP now, on the service's order or because the link is lost. HOLD does not replace STOP."""
        held = self.directive()
        if held.command is Command.ACT:
            self._interrupted_ns = self._clock.now_ns()
        elif held.command is Command.STOP or (held.needs_reset and command is Command.HOLD):
            return
        self._now = Directive(command, reason, needs_reset=command is Command.STOP)

    def directive(self) -> Directive:
        """The current directive; the same object as long as nothing changes."""
        now_ns = self._clock.now_ns()
        action = self._now.action
        if action is not None and now_ns >= action.valid_until_ns:
            self._interrupted_ns = action.valid_until_ns
            self._now = Directive(Command.HOLD, Reason.SILENCE)
        since_ns = self._interrupted_ns
        if since_ns is not None and not self._now.needs_reset and now_ns - since_ns >= self._resume_within_ns:
            self._now = Directive(self._now.command, self._now.reason, needs_reset=True)
        return self._now


class WatchdogThread:
    """A thread that calls `check` every TICK_S until stopped."""

    def __init__(self, check: Callable[[], None]) -> None:
        self._check = check
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
            self._check()
