"""The state of the service, and its listeners.

STARTING → WARMING → READY ⇄ DEGRADED → DRAINING → STOPPED, and FAULT from anywhere but the end.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum


class State(str, Enum):
    """The state of the service. DEGRADED: sessions are kept while the worker is replaced. FAULT: that failed."""

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
    """Holds the state; listeners are called for every change, in the thread that causes it."""

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
        """True while the event loop is blocked, as a watching thread reports."""
        return self._stalled

    @stalled.setter
    def stalled(self, stalled: bool) -> None:
        self._stalled = stalled
        self._notify_watchers()

    @property
    def live(self) -> bool:
        """False if this process should be restarted."""
        return self._state is not State.FAULT and not self._stalled

    @property
    def ready(self) -> bool:
        """True if a session opened now gets actions: a worker runs and the service is not stopping."""
        return self._state is State.READY and not self._stalled

    def listen(self, listener: Callable[[State], None]) -> None:
        """Call `listener` with the present and every later state."""
        self._listeners.append(listener)
        listener(self._state)

    def watch(self, watcher: Callable[[bool], object]) -> None:
        """Call `watcher` with `ready`, now and whenever it may have changed."""
        self._watchers.append(watcher)
        watcher(self.ready)

    def move(self, state: State) -> bool:
        """Change the state; False, without effect, if the transition does not exist."""
        if state not in _NEXT[self._state]:
            return False
        self._state = state
        for listener in self._listeners:
            listener(state)
        self._notify_watchers()
        return True

    def _notify_watchers(self) -> None:
        for watcher in self._watchers:
            watcher(self.ready)
