"""The connection to the service: one stream after another, never two at a time.

When a stream ends, a new one follows on a new channel, after a back-off and not before the robot pushes a frame again.
Frames in flight are lost with their stream; nothing is sent twice. An unexpected exception ends its stream like any
other failure: it is logged, the robot holds, and another attempt follows.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, Protocol

import grpc

from edgeflow_client.clock import Clock
from edgeflow_client.connection.credentials import Credentials, channel
from edgeflow_client.connection.outgoing import OutgoingMessages
from edgeflow_client.connection.wire import RECEIPTS, error_of
from edgeflow_client.errors import EdgeflowError, InvalidArgument, RequestError, Unavailable
from edgeflow_client.reasons import Reason
from edgeflow_client.rpc import control_pb2 as pb

STREAM = "/edgeflow.v1.Control/Stream"
OPEN_ANSWER_NS = 5_000_000_000  # time limit for the answer to Open
STALL_NS = 5_000_000_000  # silence after which the peer counts as gone, if STALL_FRAMES were pushed meanwhile
STALL_FRAMES = 10  # a live service reports on some of them
CLOSE_S = 1.0
_PASSING = {"UNAVAILABLE", "DEADLINE_EXCEEDED"}  # worth another attempt before the first Opened
_PASSING_LATER = _PASSING | {"RESOURCE_EXHAUSTED", "ALREADY_EXISTS", "ABORTED", "INTERNAL"}
_CHANNEL_OPTIONS = [
    ("grpc.use_local_subchannel_pool", 1),  # gRPC's own back-off must not outlive a channel
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
]
SHORTEST_S, LONGEST_S = 0.5, 8.0  # back-off: at most two attempts per second
_log = logging.getLogger("edgeflow_client")


class Backoff:
    """A delay that doubles with every failure, randomised so that robots do not reconnect in step."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._base_s = SHORTEST_S

    def next_delay_s(self) -> float:
        """The next delay in seconds, SHORTEST_S to LONGEST_S."""
        delay_s = min(self._base_s * (1.0 + self._random.random()), LONGEST_S)
        self._base_s = min(2.0 * self._base_s, LONGEST_S / 2.0)
        return delay_s

    def succeeded(self) -> None:
        """Start over: the next failure waits the shortest delay."""
        self._base_s = SHORTEST_S


class Incidents:
    """Logs unexpected exceptions with their traceback; repetitions only once."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._last = ""

    def unexpected(self, error: Exception) -> EdgeflowError:
        """Log the exception, and return the error that replaces it."""
        name = type(error).__name__
        with contextlib.suppress(Exception):  # a log handler or the exception's text may raise
            said = f"{name}: {error}"
            if said != self._last:
                self._last = said
                _log.error("unexpected %s in %s", name, self._where, exc_info=error)
        return EdgeflowError(f"unexpected {name} in {self._where}; the log has its traceback")


class LinkListener(Protocol):
    """Receiver of a link's events, called from the link's thread."""

    def stream_opened(self, message: pb.Opened, outgoing: OutgoingMessages) -> None: ...

    def stream_message(self, message: pb.ServerMessage) -> None: ...

    def stream_ended(self, error: EdgeflowError, final: bool) -> None:
        """The stream ended. final: the service rejected the session, and no other attempt follows."""


class Link:
    """Keeps a stream open, in its own thread, from `start` to `close`."""

    def __init__(
        self,
        address: str,
        credentials: Credentials | None,
        listener: LinkListener,
        opening: Callable[[], pb.Open],
        clock: Clock,
    ) -> None:
        self._address = address
        self._credentials = credentials
        self._listener = listener
        self._opening = opening
        self._clock = clock
        self._backoff = Backoff(Random())
        self._closing = threading.Event()
        self._wanted = threading.Event()
        self._thread = threading.Thread(target=self._run, name="edgeflow-link", daemon=True)
        self._outgoing: OutgoingMessages | None = None
        self._call: Any = None
        self._incidents = Incidents("the link")
        self._unwritable: Exception | None = None  # the exception that prevented a message of this stream
        self._ever_opened = self._opened = self._given_up = False
        self._heard_ns = 0
        self._offered_unheard = 0

    def start(self) -> None:
        self._thread.start()

    def frame_pushed(self) -> None:
        """The robot pushed a frame, so that a lost stream may be replaced."""
        self._offered_unheard += 1
        self._wanted.set()

    def action_delivered(self) -> None:
        """The service delivered an action: the back-off starts over."""
        self._backoff.succeeded()

    def check(self) -> None:
        """Cancel a stream whose other end is gone; called by the watchdog's thread."""
        call, silent_ns = self._call, self._clock.now_ns() - self._heard_ns
        if call is None:
            return
        stalled = self._opened and silent_ns > STALL_NS and self._offered_unheard >= STALL_FRAMES
        if stalled or (not self._opened and silent_ns > OPEN_ANSWER_NS):
            self._given_up = True
            call.cancel()

    def close(self) -> None:
        """Close the stream, wait CLOSE_S for its end, then cancel it."""
        if not self._thread.is_alive():
            return
        self._closing.set()
        self._wanted.set()
        outgoing = self._outgoing
        if outgoing is not None:
            outgoing.close()
        self._thread.join(CLOSE_S)
        call = self._call
        if call is not None:
            call.cancel()
        self._thread.join()

    def _run(self) -> None:
        while not self._closing.is_set():
            error, final = self._attempt()
            self._wanted.clear()
            self._end(error, final)
            if final or self._closing.wait(self._backoff.next_delay_s()):
                return
            if self._ever_opened:
                self._wanted.wait()

    def _attempt(self) -> tuple[EdgeflowError, bool]:
        """Run one stream; returns the error that ended it, and True if no other attempt may follow."""
        try:
            error = self._one_stream()
        except Exception as unexpected:
            return self._incidents.unexpected(unexpected), False
        return error, self._is_final(error)

    def _end(self, error: EdgeflowError, final: bool) -> None:
        try:
            self._listener.stream_ended(error, final)
        except Exception as unexpected:
            self._incidents.unexpected(unexpected)

    def _one_stream(self) -> EdgeflowError:
        """Run one stream from Open to its end; returns the error that ended it."""
        self._opened = self._given_up = False
        self._unwritable = None
        self._heard_ns = self._clock.now_ns()
        outgoing = self._outgoing = OutgoingMessages(self._opening(), self._clock)
        try:
            opened = channel(self._address, self._credentials, _CHANNEL_OPTIONS)
        except InvalidArgument as error:
            return error
        with opened:
            stream = opened.stream_stream(STREAM, pb.ClientMessage.SerializeToString, pb.ServerMessage.FromString)
            call = self._call = stream(self._written(outgoing), metadata=(RECEIPTS,))
            if self._closing.is_set() or self._unwritable is not None:
                call.cancel()
            try:
                for message in call:
                    self._hear(message, outgoing)
            except grpc.RpcError as error:
                if self._unwritable is not None:
                    raise self._unwritable from None
                silent = Unavailable(f"{self._address} stopped answering", reason=Reason.SILENT)
                return silent if self._given_up else error_of(error)
            except RequestError as error:
                return error
            finally:
                self._call = self._outgoing = None
                outgoing.end()
                call.cancel()
        return Unavailable("the service ended the stream", reason=Reason.STREAM_ENDED)

    def _written(self, outgoing: OutgoingMessages) -> Iterator[pb.ClientMessage]:
        """The messages for gRPC's thread. They must not end with an exception, which gRPC would hide."""
        try:
            yield from outgoing
        except Exception as unexpected:
            self._unwritable = unexpected
            call = self._call
            if call is not None:
                call.cancel()

    def _hear(self, message: pb.ServerMessage, outgoing: OutgoingMessages) -> None:
        self._heard_ns, self._offered_unheard = self._clock.now_ns(), 0
        outgoing.hear(message)
        if message.WhichOneof("kind") == "opened":
            self._listener.stream_opened(message.opened, outgoing)
            self._opened = self._ever_opened = True
        elif self._opened:
            self._listener.stream_message(message)

    def _is_final(self, error: EdgeflowError) -> bool:
        if getattr(error, "reason", "").upper() == Reason.OPERATOR_ENDED:
            return True  # a person decided it, and another one has to begin again
        if self._opened:
            return False
        return error.code not in (_PASSING_LATER if self._ever_opened else _PASSING)
