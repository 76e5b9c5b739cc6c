"""Messages that wait for the loop: control's in order, with the newest frame of each session, then a few of chat."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from edgeflow.ipc.messages import Message, SubmitFrame
from edgeflow_client.clock import Clock, MonotonicClock

CHAT_PER_TURN = 8


class InboxContents(NamedTuple):
    """All waiting messages of control, and the frames that were superseded before the loop saw them."""

    messages: list[Message]
    superseded: list[SubmitFrame]
    arrived_ns: dict[int, int]
    """Arrival time of each session's frame among the messages, which the loop may have been too busy to take."""
    chat: list[Message]
    """At most CHAT_PER_TURN messages of chat, to be handled after control's."""


class Inbox:
    """A queue filled by the reader threads and emptied by the loop, with at most one frame per session."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or MonotonicClock()
        self._changed = threading.Condition()
        self.on_chat_taken: Callable[[], None] = lambda: None  # called by the loop after it took messages of chat
        self._messages: deque[Message | int] = deque()
        self._chat: deque[Message] = deque()
        self._frames: dict[int, SubmitFrame] = {}
        self._superseded: list[SubmitFrame] = []
        self._arrived_ns: dict[int, int] = {}
        self.closed = False
        self._woken = False

    def put(self, message: Message) -> None:
        """Add a message; a frame to be answered replaces an older one of its session that was not drained yet."""
        with self._changed:
            if isinstance(message, SubmitFrame) and not message.seen_only:
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
        """Number of chat messages that were not drained yet."""
        return len(self._chat)

    def close(self) -> None:
        """Record that control is gone, and wake the loop."""
        with self._changed:
            self.closed = True
            self._changed.notify()

    def wake(self) -> None:
        """Wake the loop because something else became ready. May be called from any thread."""
        with self._changed:
            self._woken = True
            self._changed.notify()

    def wait(self, timeout_s: float | None) -> None:
        """Wait for a message, the end of control, or the timeout."""
        with self._changed:
            if not (self._messages or self._chat or self._superseded or self.closed or self._woken):
                self._changed.wait(timeout_s)
            self._woken = False

    def drain(self) -> InboxContents:
        """Take all waiting messages of control, and the next few of chat."""
        with self._changed:
            messages = [self._frames.pop(each) if isinstance(each, int) else each for each in self._messages]
            chat = [self._chat.popleft() for _ in range(min(len(self._chat), CHAT_PER_TURN))]
            drained = InboxContents(messages, self._superseded, self._arrived_ns, chat)
            self._messages.clear()
            self._superseded, self._arrived_ns = [], {}
        if chat:
            self.on_chat_taken()
        return drained
