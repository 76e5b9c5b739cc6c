"""The messages that a stream sends: those of a session in order, and few frames on the way at a time.

gRPC and the kernel take as many bytes as their buffers hold, also while nothing leaves them. So a frame is sent only
while few frames before it are unconfirmed (`FrameWindow`). Others wait here, where a newer one replaces them: after a
stall the service gets the frames of one window, and then the newest.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from edgeflow_client.clock import Clock, MonotonicClock
from edgeflow_client.pictures import Picture
from edgeflow_client.rpc import control_pb2 as pb

FIRST_WINDOW, MOST_UNCONFIRMED = 4, 8
SLOW_FACTOR, SLOW_NS = 1.5, 20_000_000  # a round trip beyond the quickest by this factor and time waits in a queue
SMOOTHING, DRIFT = 4, 512  # round trips over which their mean and the quickest follow
OUTLIER = 4  # times the quickest: the most that one round trip counts
SEEN = 3  # round trips of a window before it is judged
PROMPT, MOST_PROMPT = 8, 64  # prompt round trips before the window grows


class FrameWindow:
    """The frames on the way that the service has not confirmed, and how many there may be. No threads, no clock.

    Until `limit` there may be any number, as with a service that confirms none. Then the window grows by one frame
    after a number of prompt round trips that filled it, and shrinks by one when frames wait in a queue on the way. The
    number doubles whenever it shrinks, so that a narrow link is seldom tried.
    """

    def __init__(self) -> None:
        self.size = 0
        """Frames that may be unconfirmed, 1 to MOST_UNCONFIRMED; 0 = any number."""
        self._sent: deque[tuple[int, int]] = deque()
        self._quickest_ns = self._mean_ns = 0.0
        self._filled = False
        self._seen = self._prompt = 0
        self._patience = PROMPT

    def limit(self) -> None:
        """Begin to limit: the service confirms frames."""
        self.size = FIRST_WINDOW

    def admits(self) -> bool:
        """True if a frame may be sent."""
        room = not self.size or len(self._sent) < self.size
        self._filled = self._filled or not room
        return room

    def sent(self, seq: int, now_ns: int) -> None:
        """A frame is written."""
        if self.size:
            self._sent.append((seq, now_ns))

    def confirmed(self, seq: int, now_ns: int) -> None:
        """The service has this frame and all before it. seq: 0 = the oldest, which it could not read."""
        sent_ns = None
        while self._sent and (self._sent[0][0] <= seq or (not seq and sent_ns is None)):
            sent_ns = self._sent.popleft()[1]
        if sent_ns is not None:
            self._observe(now_ns - sent_ns)

    def _observe(self, trip_ns: float) -> None:
        """Adapt to a round trip."""
        quickest_ns = self._quickest_ns or trip_ns
        trip_ns = min(trip_ns, max(OUTLIER * quickest_ns, quickest_ns + OUTLIER * SLOW_NS))
        self._quickest_ns = min(trip_ns, quickest_ns + (trip_ns - quickest_ns) / DRIFT)
        if not self._seen or trip_ns <= quickest_ns:  # round trips before say nothing of the link as it is now
            self._mean_ns = trip_ns
        self._mean_ns += (trip_ns - self._mean_ns) / SMOOTHING
        self._seen += 1
        if self._seen < SEEN:
            return
        if self._mean_ns > SLOW_FACTOR * self._quickest_ns + SLOW_NS:
            self._resize(max(self.size - 1, 1))
            self._patience = min(2 * self._patience, MOST_PROMPT)
        elif self._filled:
            self._prompt += 1
            if self._prompt >= self._patience:
                self._resize(min(self.size + 1, MOST_UNCONFIRMED))

    def _resize(self, size: int) -> None:
        self.size, self._seen, self._prompt, self._filled = size, 0, 0, False


class OutgoingMessages(Iterator[pb.ClientMessage]):
    """Messages in the order Open, Reset, frame, Close. gRPC takes the next one once the last one is written.

    Offering never waits: a frame that was not taken yet is replaced.
    """

    def __init__(self, opening: pb.Open, clock: Clock | None = None) -> None:
        self._changed = threading.Condition()
        self._open: pb.Open | None = opening
        self._reset: pb.Reset | None = None
        self._frame: pb.Frame | None = None
        self._images: Sequence[bytes | Picture] = ()
        self._on_sent: Callable[[Sequence[bytes]], None] | None = None
        self._closing = False
        self._ended = False
        self._clock = clock or MonotonicClock()
        self._window = FrameWindow()

    def offer(
        self,
        frame: pb.Frame,
        images: Sequence[bytes | Picture] = (),
        on_sent: Callable[[Sequence[bytes]], None] | None = None,
    ) -> int:
        """Replace the waiting frame; returns the number of the replaced one, or 0.

        images: of the frame, whose pictures are encoded when it is sent. on_sent: called with the images that are sent,
        in the thread that sends them.
        """
        with self._changed:
            replaced, self._frame, self._images, self._on_sent = self._frame, frame, images, on_sent
            self._changed.notify()
            return replaced.seq if replaced is not None else 0

    def reset(self, instruction: str) -> int:
        """Start a new episode; returns the number of the frame withdrawn for it, or 0."""
        with self._changed:
            withdrawn, self._frame = self._frame, None
            self._reset = pb.Reset(instruction=instruction)
            self._changed.notify()
            return withdrawn.seq if withdrawn is not None else 0

    def hear(self, message: pb.ServerMessage) -> None:
        """A message of the service, which may confirm frames: the next one may leave."""
        with self._changed:
            match message.WhichOneof("kind"):
                case "opened" if message.opened.receipts:
                    self._window.limit()
                case "receipt":
                    self._confirm(message.receipt.seq)
                case "action" if message.action.seq:
                    self._confirm(message.action.seq)
                case "frame_status":
                    self._confirm(max(message.frame_status.seq, message.frame_status.last_seq))

    def close(self) -> None:
        """Send the waiting messages and Close, then end."""
        with self._changed:
            self._closing = True
            self._changed.notify()

    def end(self) -> None:
        """End at once: the stream is gone."""
        with self._changed:
            self._ended = True
            self._changed.notify()

    def __next__(self) -> pb.ClientMessage:
        with self._changed:
            while not self._ended:
                message, images, on_sent = self._take(), self._images, self._on_sent
                if message is not None:
                    break
                self._changed.wait()
            else:
                raise StopIteration
        if message.WhichOneof("kind") == "frame":
            sent = _encode(message.frame, images)
            if on_sent is not None:
                on_sent(sent)
        return message

    def _confirm(self, seq: int) -> None:
        self._window.confirmed(seq, self._clock.now_ns())
        self._changed.notify()

    def _take(self) -> pb.ClientMessage | None:
        if self._open is not None:
            opening, self._open = self._open, None
            return pb.ClientMessage(open=opening)
        if self._reset is not None:
            reset, self._reset = self._reset, None
            return pb.ClientMessage(reset=reset)
        if self._frame is not None and self._window.admits():
            frame, self._frame = self._frame, None
            self._window.sent(frame.seq, self._clock.now_ns())
            return pb.ClientMessage(frame=frame)
        if self._closing:  # a frame that may not be sent yet is not worth waiting for
            self._ended = True
            return pb.ClientMessage(close=pb.Close())
        return None


def _encode(frame: pb.Frame, images: Sequence[bytes | Picture]) -> list[bytes]:
    """Encode the pictures of a frame; returns all of its images."""
    sent = []
    for message, image in zip(frame.images, images, strict=False):
        if isinstance(image, Picture):
            message.data = image.encoded()
        sent.append(message.data if isinstance(image, Picture) else image)
    return sent
