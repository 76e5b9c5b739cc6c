"""The service's state and who is told when it changes.

STARTING → WARMING → READY ⇄ DEGRADED → DRAINING → STOPPED, and FAULT from anywhere but the end.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum


class State(str, Enum):
    """DEGRADED: sessions are kept, the worker is being replaced. FAULT: it could not be replaced."""

    STARTING = "starting"
    WARMING = "warming"
    READY = "ready"
    DEGRADED = "degraded"
    DRAINING = "draining"
    STOPPED = "stopped"
    FAULT = "fault"


_NEXT = {
    State.STARTING: {State.WARMING, State.DRAINING, State.STOPPED, State.FAULT},
    State.WARMING: {State.READY, State.DRAINING, State.STOPPED, State.FAULT},
    State.READY: {State.DEGRADED, State.DRAINING, State.FAULT},
    State.DEGRADED: {State.READY, State.DRAINING, State.FAULT},
    State.FAULT: {State.DRAINING, State.STOPPED},
    State.DRAINING: {State.STOPPED},
    State.STOPPED: set(),
}


class Health:
    """Holds the state; listeners hear every change, in the thread that causes it."""

    def __init__(self) -> None:
        self._state = State.STARTING
        self._stalled = False
        self._listeners: list[Callable[[State], None]] = []
        self._watchers: list[Callable[[bool], object]] = []

    @property
    def state(self) -> State:
        return self._state

    @property
    def stalled(self) -> bool:
        """The loop does not turn, says a thread that sees it."""
        return self._stalled

    @stalled.setter
    def stalled(self, stalled: bool) -> None:
        self._stalled = stalled
        self._tell_watchers()

    @property
    def live(self) -> bool:
        """Whether restarting this process would not help."""
        return self._state is not State.FAULT and not self._stalled

    @property
    def ready(self) -> bool:
        """Whether a robot that opens a session now gets actions: the worker makes progress and nothing is ending."""
        return self._state is State.READY and not self._stalled

    def listen(self, listener: Callable[[State], None]) -> None:
        """Call `listener` with the present state and with every later one."""
        self._listeners.append(listener)
        listener(self._state)

    def watch(self, watcher: Callable[[bool], object]) -> None:
        """Call `watcher` with whether the service is ready, now and whenever that may have changed."""
        self._watchers.append(watcher)
        watcher(self.ready)

    def move(self, state: State) -> bool:
        """Change the state; False (and nothing happens) where that step does not exist."""
        if state not in _NEXT[self._state]:
            return False
        self._state = state
        for listener in self._listeners:
            listener(state)
        self._tell_watchers()
        return True

    def _tell_watchers(self) -> None:
        for watcher in self._watchers:
            watcher(self.ready)
