"""Messages from the front that wait for the loop: in order, but only the newest frame of each session."""

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
    """A queue filled by the reader thread and emptied by the loop, with at most one frame per session."""

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
        """Add a message; a frame replaces an older one of its session that was not drained yet."""
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
        """Note that the front has gone, and wake a waiting loop."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def wake(self) -> None:
        """Make a waiting loop look again, because something else became ready. From any thread."""
        with self._changed:
            self._woken = True
            self._changed.notify()

    @property
    def closed(self) -> bool:
        return self._closed

    def wait(self, timeout_s: float | None) -> None:
        """Wait until a message is here, the front goes, or the timeout ends."""
        with self._changed:
            if not self._messages and not self._superseded and not self._closed and not self._woken:
                self._changed.wait(timeout_s)
            self._woken = False

    def drain(self) -> Drained:
        """Take everything that waits."""
        with self._changed:
            messages = [self._frames.pop(each) if isinstance(each, int) else each for each in self._messages]
            drained = Drained(messages, self._superseded, self._arrived_ns)
            self._messages.clear()
            self._superseded, self._arrived_ns = [], {}
        return drained
