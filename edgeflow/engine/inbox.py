"""What has arrived from the front and waits for the loop: in order, but only the newest frame of a session."""

from __future__ import annotations

import threading
from collections import deque
from typing import NamedTuple

from edgeflow.clock import Clock, MonotonicClock
from edgeflow.ipc.messages import Message, SubmitFrame


class Drained(NamedTuple):
    """Everything that waited, and the frames that were superseded before they were seen.

    arrived_ns: of the frame of each session among the messages, however long the loop was busy since.
    """

    messages: list[Message]
    superseded: list[SubmitFrame]
    arrived_ns: dict[int, int]


class Inbox:
    """Filled by the reader thread, emptied by the loop. Bounded by one frame a session."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or MonotonicClock()
        self._changed = threading.Condition()
        self._messages: deque[Message | int] = deque()
        self._frames: dict[int, SubmitFrame] = {}
        self._superseded: list[SubmitFrame] = []
        self._arrived_ns: dict[int, int] = {}
        self._closed = False
        self._woken = False

    def put(self, message: Message) -> None:
        """A frame takes the place of an older one of its session that was not drained yet."""
        with self._changed:
            if isinstance(message, SubmitFrame):
                older = self._frames.get(message.session)
                self._frames[message.session] = message
                self._arrived_ns[message.session] = self._clock.now_ns()
                if older is None:
                    self._messages.append(message.session)
                else:
                    self._superseded.append(older)
            else:
                self._messages.append(message)
            self._changed.notify()

    def close(self) -> None:
        """The front has gone; a waiting loop wakes."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def wake(self) -> None:
        """Something else became ready: the loop looks again. From any thread."""
        with self._changed:
            self._woken = True
            self._changed.notify()

    @property
    def closed(self) -> bool:
        return self._closed

    def wait(self, timeout_s: float | None) -> None:
        """Until something is here, the front goes, or the timeout."""
        with self._changed:
            if not self._messages and not self._superseded and not self._closed and not self._woken:
                self._changed.wait(timeout_s)
            self._woken = False

    def drain(self) -> Drained:
        """Empty it."""
        with self._changed:
            messages = [self._frames.pop(each) if isinstance(each, int) else each for each in self._messages]
            drained = Drained(messages, self._superseded, self._arrived_ns)
            self._messages.clear()
            self._superseded, self._arrived_ns = [], {}
        return drained
