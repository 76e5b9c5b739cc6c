"""The messages that a stream still has to write; of frames only the newest."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from edgeflow_client.rpc import control_pb2 as pb


class Outgoing(Iterator[pb.ClientMessage]):
    """Messages in the order Open, Reset, frame, Close; gRPC takes the next one once the previous one is written.

    Offering never waits: a frame that was not taken yet is replaced.
    """

    def __init__(self, opening: pb.Open) -> None:
        self._changed = threading.Condition()
        self._open: pb.Open | None = opening
        self._reset: pb.Reset | None = None
        self._frame: pb.Frame | None = None
        self._closing = False
        self._ended = False

    def offer(self, frame: pb.Frame) -> int:
        """Replace the waiting frame; returns the number of the replaced one, or 0."""
        with self._changed:
            replaced, self._frame = self._frame, frame
            self._changed.notify()
            return replaced.seq if replaced is not None else 0

    def reset(self, instruction: str) -> int:
        """Start a new episode; returns the number of the frame withdrawn for it, or 0."""
        with self._changed:
            withdrawn, self._frame = self._frame, None
            self._reset = pb.Reset(instruction=instruction)
            self._changed.notify()
            return withdrawn.seq if withdrawn is not None else 0

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
                message = self._take()
                if message is not None:
                    return message
                self._changed.wait()
        raise StopIteration

    def _take(self) -> pb.ClientMessage | None:
        if self._open is not None:
            opening, self._open = self._open, None
            return pb.ClientMessage(open=opening)
        if self._reset is not None:
            reset, self._reset = self._reset, None
            return pb.ClientMessage(reset=reset)
        if self._frame is not None:
            frame, self._frame = self._frame, None
            return pb.ClientMessage(frame=frame)
        if self._closing:
            self._ended = True
            return pb.ClientMessage(close=pb.Close())
        return None
