"""One session of a recording, sent again: the same contract and frames over its own stream.

It speaks the protocol itself. The SDK would stamp frames with its own clock and report the chunks that it executes; a
replay sends the recorded stamps, which flow noise follows from, and the recorded reports, which real-time chunking and
resting robots depend on.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import grpc
import numpy as np

from edgeflow.lab.recordings.differences import Rows
from edgeflow.lab.recordings.sessions import Images, StoredSession
from edgeflow_client.clock import Clock
from edgeflow_client.connection.link import STREAM
from edgeflow_client.connection.wire import (
    COMMANDS,
    DISPOSITIONS,
    EXECUTION_NUMBERS,
    Opened,
    SessionSettings,
    error_of,
    open_message,
    opened_of,
)
from edgeflow_client.errors import DeadlineExceeded, EdgeflowError, FailedPrecondition, Unavailable
from edgeflow_client.reasons import Reason
from edgeflow_client.recording.records import RecordedObservation
from edgeflow_client.rpc import control_pb2 as pb
from edgeflow_client.types import Command, Disposition, Mode

UNKNOWN_PERIOD_S = 0.1
OPEN_ANSWER_S, CLOSE_S = 10.0, 2.0
RESET_S = 0.25  # between episodes: a service accepts five changes per second
LEAD_NS = 900_000_000  # a service rejects stamps that run ahead of its own clock by more than a second
MOST_AHEAD_NS = 60_000_000_000  # a larger jump is of a clock that was set, which a service notices


class ReplayStream:
    """A stream for a recorded session.

    speed: multiple of the recorded rate. Below 1, stamps are stretched with the time: by stamps in their own time every
    frame would seem late.
    """

    def __init__(
        self,
        session: StoredSession,
        connection: Any,
        clock: Clock,
        speed: float,
    ) -> None:
        self.heard: Callable[[int, Rows, pb.Action, int], None] = lambda *_: None
        """Called with the recorded number of a frame, its answer [rows, D] and message, and the round trip in ns."""
        self.opened: Opened | None = None
        self.error: EdgeflowError | None = None
        """Why the service ended the stream before its end."""
        self.outcomes: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.holds: Counter[str] = Counter()
        self.sent = 0
        self.unsendable = 0
        """Frames whose numbers no message can carry."""
        self.waited_ns = 0
        """Time waited because stamps ran ahead of the clock."""
        self._session = session
        self._connection = connection
        self._clock = clock
        self._speed = speed
        self._call: Any = None
        self._reader: asyncio.Task[None] | None = None
        self._wire: dict[int, int] = {}  # numbers of this stream by recorded ones
        self._recorded: list[int] = [0]  # recorded numbers by those of this stream, from 1 on
        self._sent_ns: deque[int] = deque([0])
        self._left: set[int] = set()  # frames in flight
        self._newest = pb.Arrived()  # the newest answer of this stream
        self._changed = asyncio.Event()
        self._epoch: int | None = None
        self._reset_ns = 0
        self._first_stamp_ns = self._stamp_ns = self._offered_ns = 0

    async def open(self) -> Opened:
        """Open the session with the recorded contract; the service's error if it rejects it."""
        stream = self._connection.stream_stream(
            STREAM,
            request_serializer=pb.ClientMessage.SerializeToString,
            response_deserializer=pb.ServerMessage.FromString,
        )
        self._call = stream()
        try:
            message = await asyncio.wait_for(self._ask(contract_message(self._session, self._speed)), OPEN_ANSWER_S)
        except grpc.RpcError as error:
            raise error_of(error) from None
        except asyncio.TimeoutError:
            text = f"Open was not answered within {OPEN_ANSWER_S:g} s"
            raise DeadlineExceeded(text, reason=Reason.NOT_OPENED) from None
        if message is grpc.aio.EOF or message.WhichOneof("kind") != "opened":
            raise FailedPrecondition("the service did not answer Open")
        self.opened = opened_of(message.opened)
        self._reader = asyncio.create_task(self._read())
        return self.opened

    async def send(self, observation: RecordedObservation, images: Images) -> bool:
        """Send a frame, after a reset where its episode begins; False if the stream has ended."""
        try:
            frame = self._frame(observation, images)
        except (TypeError, ValueError, OverflowError):
            self.unsendable += 1
            return self.error is None
        await self._keep_clock(observation.stamp_ns)
        try:
            if self._epoch not in (None, observation.epoch):
                await self._reset(observation.instruction)
            self._epoch = observation.epoch
            self._wire[observation.seq] = frame.seq
            self._recorded.append(observation.seq)
            self._left.add(frame.seq)
            self._offered_ns = self._clock.now_ns()
            self._sent_ns.append(self._offered_ns)
            await self._call.write(pb.ClientMessage(frame=frame))
            self.sent += 1
        except (grpc.RpcError, asyncio.InvalidStateError):
            await self._ended()
            return False
        return self.error is None

    async def drained(self, within_s: float) -> None:
        """Wait until no frame is in flight, but no longer than this."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._until_none_is_left(), within_s)

    async def close(self) -> None:
        """Close the session."""
        call = self._call
        if call is None:
            return
        with contextlib.suppress(grpc.RpcError, asyncio.InvalidStateError):
            if self.error is None and self._reader is not None:
                reader, self._reader = self._reader, None
                await call.write(pb.ClientMessage(close=pb.Close()))
                await call.done_writing()
                await asyncio.wait({reader}, timeout=CLOSE_S)
                reader.cancel()
        call.cancel()

    async def _ask(self, opening: pb.Open) -> Any:
        await self._call.write(pb.ClientMessage(open=opening))
        return await self._call.read()

    async def _until_none_is_left(self) -> None:
        while self._left and self.error is None:
            self._changed.clear()
            await self._changed.wait()

    async def _keep_clock(self, stamp_ns: int) -> None:
        """Wait where stamps would run ahead of the clock by more than a service accepts at once."""
        ahead_ns = self._stretched(stamp_ns) - self._stamp_ns - (self._clock.now_ns() - self._offered_ns) - LEAD_NS
        if self._offered_ns and 0 < ahead_ns < MOST_AHEAD_NS and self.error is None:
            self.waited_ns += ahead_ns
            await asyncio.sleep(ahead_ns / 1e9)
        self._stamp_ns = self._stretched(stamp_ns)

    async def _reset(self, instruction: str) -> None:
        """Begin an episode."""
        wait_ns = self._reset_ns + round(RESET_S * 1e9) - self._clock.now_ns()
        if self._reset_ns and wait_ns > 0:
            await asyncio.sleep(wait_ns / 1e9)
        self._reset_ns = self._clock.now_ns()
        await self._call.write(pb.ClientMessage(reset=pb.Reset(instruction=instruction)))

    def _stretched(self, stamp_ns: int) -> int:
        """A stamp on the clock of this replay."""
        if self._speed >= 1.0:
            return stamp_ns
        return max(self._first_stamp_ns + round((stamp_ns - self._first_stamp_ns) / self._speed), 0)

    def _frame(self, observation: RecordedObservation, images: Images) -> pb.Frame:
        if not self._first_stamp_ns:
            self._first_stamp_ns = observation.stamp_ns
        frame = pb.Frame(
            seq=len(self._recorded),
            stamp_ns=self._stretched(observation.stamp_ns),
            images=[pb.Image(data=image) for image in images],
            proprio=observation.state,
            resting=observation.resting,
        )
        if observation.instruction:
            frame.instruction = observation.instruction
        playing = observation.playing
        if playing is not None and playing.seq in self._wire:
            start_ns = self._stretched(playing.start_ns) if playing.start_ns else 0
            frame.playing.CopyFrom(pb.Playing(seq=self._wire[playing.seq], step=playing.step, start_ns=start_ns))
        if (arrived := self._arrival(observation)) is not None:
            frame.arrived.CopyFrom(arrived)
        return frame

    def _arrival(self, observation: RecordedObservation) -> pb.Arrived | None:
        """The newest answer that arrived: the recorded one, or a later one of this replay.

        A service does not answer robots that rest and did not get its newest answer yet.
        """
        recorded = observation.arrived
        wire = self._wire.get(recorded.seq, 0) if recorded is not None else 0
        if self._session.contract.execution is not None and self._newest.seq > wire:
            age_ns = recorded.age_ns if wire and recorded is not None else self._newest.age_ns
            return pb.Arrived(seq=self._newest.seq, age_ns=age_ns)
        return pb.Arrived(seq=wire, age_ns=recorded.age_ns) if wire and recorded is not None else None

    async def _read(self) -> None:
        """Take the service's messages until the stream ends."""
        try:
            while (message := await self._call.read()) is not grpc.aio.EOF:
                self._hear(message)
                self._changed.set()
            code, text = await self._call.code(), await self._call.details()
            ended: EdgeflowError = Unavailable(f"the service ended the stream: {code.name} {text}".rstrip())
        except grpc.RpcError as error:
            ended = error_of(error)
        except asyncio.CancelledError:
            return
        if self._reader is not None:  # otherwise this side closed it
            self.error = ended
        self._changed.set()

    async def _ended(self) -> None:
        """Let the reader learn why the stream ended."""
        if self._reader is not None:
            await asyncio.wait({self._reader}, timeout=CLOSE_S)

    def _hear(self, message: pb.ServerMessage) -> None:
        match message.WhichOneof("kind"):
            case "action":
                self._hear_action(message.action)
            case "frame_status":
                status = message.frame_status
                disposition = DISPOSITIONS.get(status.disposition, Disposition.DROPPED)
                last = min(max(status.seq, status.last_seq), len(self._recorded) - 1)
                for wire in range(status.seq, last + 1):
                    self._left.discard(wire)
                    self.outcomes[disposition.value] += 1
                    if disposition is not Disposition.ACTED:
                        self.reasons[status.reason or status.code] += 1

    def _hear_action(self, action: pb.Action) -> None:
        command = COMMANDS.get(action.command, Command.HOLD)
        if command is not Command.ACT:
            self.holds[f"{command.value.upper()} {action.reason}".rstrip()] += 1
            return
        rows, dims = action.horizon or 1, len(self.opened.schema.names) if self.opened is not None else 0
        if not 0 < action.seq < len(self._recorded) or len(action.values) != rows * dims or not dims:
            self.holds["HOLD MALFORMED_ACTION"] += 1
            return
        round_trip_ns = max(self._clock.now_ns() - self._sent_ns[action.seq], 0)
        self._newest = pb.Arrived(seq=action.seq, age_ns=round_trip_ns)
        values = np.asarray(action.values, np.float64).reshape(rows, dims)
        self.heard(self._recorded[action.seq], values, action, round_trip_ns)


def contract_message(session: StoredSession, speed: float) -> pb.Open:
    """The recorded contract as a service gets it, with the period of this speed. The model is the one that it serves.

    InvalidArgument for a contract that no message can carry.
    """
    opening = session.contract
    mode = opening.mode
    settings = SessionSettings(
        cameras=tuple(replace(camera, resize=False) for camera in session.cameras),
        control_period_s=(opening.control_period_ns / 1e9 or UNKNOWN_PERIOD_S) / speed,
        mode=mode,
        max_action_age_s=None if opening.max_action_age_ns is None else opening.max_action_age_ns / 1e9,
        unnorm_key=opening.unnorm_key,
        depth=opening.depth if mode is Mode.DEPTH else 0,
        tolerance_bins=opening.tolerance_bins if mode is Mode.SPECULATIVE else 0,
        max_passes=opening.max_passes if mode is Mode.SPECULATIVE else 0,
        state=opening.state,
        chunks=opening.chunks,
    )
    message = open_message(settings, opening.instruction)
    message.execution = EXECUTION_NUMBERS[opening.execution if opening.chunks else None]
    return message
