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
    """Holds the state; listeners hear every change, in the caller's thread. stalled: the loop does not turn."""

    def __init__(self) -> None:
        self.stalled = False
        self._state = State.STARTING
        self._listeners: list[Callable[[State], None]] = []

    @property
    def state(self) -> State:
        return self._state

    @property
    def live(self) -> bool:
        """Whether restarting this process would not help."""
        return self._state is not State.FAULT and not self.stalled

    @property
    def ready(self) -> bool:
        """Whether a robot that opens a session now gets actions: the worker makes progress and nothing is ending."""
        return self._state is State.READY and not self.stalled

    def listen(self, listener: Callable[[State], None]) -> None:
        """Call `listener` with the present state and with every later one."""
        self._listeners.append(listener)
        listener(self._state)

    def move(self, state: State) -> bool:
        """Change the state; False (and nothing happens) where that step does not exist."""
        if state not in _NEXT[self._state]:
            return False
        self._state = state
        for listener in self._listeners:
            listener(state)
        return True
