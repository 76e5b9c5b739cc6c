"""Messages that wait for the loop: control's in order, with the newest frame of each session; then a few of chat."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from edgeflow.ipc.messages import Message, SubmitFrame
from edgeflow_client.clock import Clock, MonotonicClock

CHAT_PER_TURN = 8


class InboxContents(NamedTuple):
    """Everything of control that waited, and the frames that were superseded before they were seen."""

    messages: list[Message]
    superseded: list[SubmitFrame]
    arrived_ns: dict[int, int]
    """The arrived of the frame of each session among the messages, however long the loop was busy since."""
    chat: list[Message]
    """At most CHAT_PER_TURN messages of chat, to be handled after control's."""


class Inbox:
    """A queue filled by the reader threads and emptied by the loop, with at most one frame per session."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or MonotonicClock()
        self._changed = threading.Condition()
        self.chat_taken: Callable[[], None] = lambda: None  # called by the loop after it took messages of chat
        self._messages: deque[Message | int] = deque()
        self._chat: deque[Message] = deque()
        self._frames: dict[int, SubmitFrame] = {}
        self._superseded: list[SubmitFrame] = []
        self._arrived_ns: dict[int, int] = {}
        self.closed = False
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

    def put_chat(self, message: Message) -> None:
        """Add a message of chat; the caller keeps `chat_waiting` small."""
        with self._changed:
            self._chat.append(message)
            self._changed.notify()

    @property
    def chat_waiting(self) -> int:
        """Messages of chat that were not drained yet."""
        return len(self._chat)

    def close(self) -> None:
        """Note that control has gone, and wake a waiting loop."""
        with self._changed:
            self.closed = True
            self._changed.notify()

    def wake(self) -> None:
        """Make a waiting loop look again, because something else became ready. From any thread."""
        with self._changed:
            self._woken = True
            self._changed.notify()

    def wait(self, timeout_s: float | None) -> None:
        """Wait until a message is here, control goes, or the timeout ends."""
        with self._changed:
            if not (self._messages or self._chat or self._superseded or self.closed or self._woken):
                self._changed.wait(timeout_s)
            self._woken = False

    def drain(self) -> InboxContents:
        """Take everything of control that waits, and the next few messages of chat."""
        with self._changed:
            messages = [self._frames.pop(each) if isinstance(each, int) else each for each in self._messages]
            chat = [self._chat.popleft() for _ in range(min(len(self._chat), CHAT_PER_TURN))]
            drained = InboxContents(messages, self._superseded, self._arrived_ns, chat)
            self._messages.clear()
            self._superseded, self._arrived_ns = [], {}
        if chat:
            self.chat_taken()
        return drained
