"""What has arrived from the front and waits for the loop: in order, but only the newest frame of a session."""

from __future__ import annotations

import threading
from collections import deque

from edgeflow.ipc.messages import Message, SubmitFrame


class Inbox:
    """Filled by the reader thread, emptied by the loop. Bounded by one frame a session."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._messages: deque[Message | int] = deque()
        self._frames: dict[int, SubmitFrame] = {}
        self._superseded: list[SubmitFrame] = []
        self._closed = False
        self._woken = False

    def put(self, message: Message) -> None:
        """A frame takes the place of an older one of its session that was not drained yet."""
        with self._changed:
            if isinstance(message, SubmitFrame):
                older = self._frames.get(message.session)
                self._frames[message.session] = message
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

    def drain(self) -> tuple[list[Message], list[SubmitFrame]]:
        """Everything that waits, and the frames that were superseded before they were seen."""
        with self._changed:
            messages = [
                self._frames.pop(message) if isinstance(message, int) else message for message in self._messages
            ]
            superseded = self._superseded
            self._messages.clear()
            self._superseded = []
        return messages, superseded
