"""Recorded sessions sent to a service, one stream each and side by side as recorded, and their answers compared."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from edgeflow.lab.progress import Report
from edgeflow.lab.recordings.differences import AnswerDifferences, Rows, check_same_action, rows_of_record
from edgeflow.lab.recordings.sessions import StoredFrame, StoredSession, read_frames
from edgeflow.lab.recordings.stream import ReplayStream
from edgeflow_client.clock import Clock, MonotonicClock
from edgeflow_client.connection.credentials import Credentials, channel
from edgeflow_client.connection.wire import Opened, report_of
from edgeflow_client.errors import EdgeflowError, FailedPrecondition
from edgeflow_client.recording.reader import Recording
from edgeflow_client.rpc import control_pb2 as pb
from edgeflow_client.types import ActionSchema

ANSWER_S = 10.0  # time limit for the outcome of a frame
DAY_NS, MOST_DAYS = 86_400_000_000_000, 7
LEAD_S = 0.2  # from opening a session to its first frame
CHANNEL_OPTIONS = [
    ("grpc.use_local_subchannel_pool", 1),  # a connection per session, as robots have
    ("grpc.max_receive_message_length", -1),
    ("grpc.enable_http_proxy", 0),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPlan:
    """How a recording is replayed."""

    address: str
    speed: float | None
    """Multiple of the recorded rate; None = each frame as soon as the one before it is answered."""
    tolerance: float
    """The largest difference that counts as equal, in the unit of each dimension."""
    credentials: Credentials | None = None


@dataclass(slots=True, kw_only=True)
class ReplayedSession:
    """The replay of one session."""

    label: str
    differences: AnswerDifferences
    stream: ReplayStream
    recorded_schema: ActionSchema
    frames: int = 0
    """Frames read from the recording."""
    without_images: int = 0
    """Frames that were not sent, because their images are missing."""
    recorded: int = 0
    """Frames answered in the recording."""
    replayed: int = 0
    """Frames answered in the replay."""
    continued: int = 0
    """Answers of either that continue a chunk in execution."""
    recorded_ns: array[int] = field(default_factory=lambda: array("Q"))
    """The time from receiving a frame to sending its answer, of each recorded answer."""
    server_ns: array[int] = field(default_factory=lambda: array("Q"))
    """The same of each answer of the replay."""
    round_trip_ns: array[int] = field(default_factory=lambda: array("Q"))
    late_ns: int = 0
    """The most by which a frame was sent late."""
    _expected: dict[int, tuple[int, float, Rows | None]] = field(default_factory=dict)
    # of each frame that is not answered yet its index, its second and its recorded answer

    @property
    def error(self) -> EdgeflowError | None:
        """Why the service ended the session early; None if it did not."""
        return self.stream.error

    @property
    def only_recorded(self) -> int:
        """Frames answered in the recording only."""
        return self.recorded - self.differences.compared

    @property
    def only_replayed(self) -> int:
        """Frames answered in the replay only."""
        return self.replayed - self.differences.compared

    @property
    def parted(self) -> int:
        """Frames whose answers differ by more than the tolerance."""
        return self.differences.compared - self.differences.equal

    def expect(self, frame: StoredFrame, at_s: float) -> None:
        """A frame is about to be sent."""
        answer = frame.answer
        rows = None if answer is None else rows_of_record(answer, self.recorded_schema)
        self._expected[frame.observation.seq] = self.frames, at_s, rows
        self.frames += 1
        if answer is not None and rows is not None:
            self.recorded += 1
            self.recorded_ns.append(min(answer.server_ns, (1 << 63) - 1))
            self.continued += answer.report.continues > 0

    def heard(self, seq: int, rows: Rows, action: pb.Action, round_trip_ns: int) -> None:
        """The service answered a frame."""
        self.replayed += 1
        self.server_ns.append(action.timings.server_ns)
        self.round_trip_ns.append(round_trip_ns)
        self.continued += report_of(action, 0).continues > 0
        index, at_s, recorded = self._expected.pop(seq, (0, 0.0, None))
        if recorded is not None:
            self.differences.add(self.label, seq, at_s, index, first=recorded, second=rows)


class SessionReplay:
    """The replay of some sessions of a recording."""

    def __init__(
        self,
        recording: Recording,
        sessions: Sequence[StoredSession],
        plan: ReplayPlan,
        report: Report,
        clock: Clock | None = None,
    ) -> None:
        self._recording = recording
        self._sessions = sessions
        self._plan = plan
        self._report = report
        self._clock = clock or MonotonicClock()
        self._begin_ns = 0
        self._first_ns = min(each.first_ns for each in sessions)
        self._total = sum(each.frames for each in sessions)
        self._done = 0

    async def run(self) -> list[ReplayedSession]:
        """Send the sessions and compare.

        FailedPrecondition if one cannot be opened, or its answers cannot be compared.
        """
        days = (max(each.last_ns for each in self._sessions) - self._first_ns) / DAY_NS
        if self._plan.speed is not None and days > MOST_DAYS:
            text = f"its frames are {days:.0f} days apart: take one --session at a time, or --rate full"
            raise FailedPrecondition(text, field="path")
        self._begin_ns = self._clock.now_ns() + round(LEAD_S * 1e9)
        tasks: dict[str, asyncio.Task[ReplayedSession]] = {}
        for session in sorted(self._sessions, key=lambda each: each.first_ns):
            before = [tasks[each.label] for each in self._sessions if each.last_ns < session.first_ns]
            tasks[session.label] = asyncio.create_task(self._one(session, before))
        try:
            await asyncio.gather(*tasks.values())
        finally:
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)
        return [tasks[each.label].result() for each in self._sessions]

    async def _one(self, session: StoredSession, before: Sequence[asyncio.Task[ReplayedSession]]) -> ReplayedSession:
        """Replay a session, after those that ended before it began."""
        if before:
            await asyncio.wait(before)
        await self._sleep_until(self._due_ns(session.first_ns) - round(LEAD_S * 1e9))
        async with channel(self._plan.address, self._plan.credentials, CHANNEL_OPTIONS, aio=True) as connection:
            stream = ReplayStream(session, connection, self._clock, self._plan.speed or 1.0)
            try:
                opened = await self._opened(session, stream)
                schema = session.contract.schema or opened.schema
                check_same_action(schema, opened.schema, (f"session {session.label}", self._plan.address))
                differences = AnswerDifferences.of(schema, opened.schema, self._plan.tolerance)
                replayed = ReplayedSession(
                    label=session.label, differences=differences, stream=stream, recorded_schema=schema
                )
                stream.heard = replayed.heard
                await self._send(session, stream, replayed)
            finally:
                await stream.close()
        return replayed

    async def _opened(self, session: StoredSession, stream: ReplayStream) -> Opened:
        try:
            return await stream.open()
        except EdgeflowError as error:
            raise FailedPrecondition(f"session {session.label} cannot be opened: {error}", field="to") from None

    async def _send(self, session: StoredSession, stream: ReplayStream, replayed: ReplayedSession) -> None:
        """Send the frames of a session, and wait for the answers to the last ones."""
        cameras = len(session.cameras)
        frames = read_frames(self._recording, session.label)
        while (frame := await asyncio.to_thread(next, frames, None)) is not None:
            time_ns = frame.observation.time_ns
            replayed.expect(frame, (time_ns - session.first_ns) / 1e9)
            self._done += 1
            self._report("replay", self._done, self._total)
            if len(frame.images) < cameras:
                replayed.without_images += 1
                continue
            if self._plan.speed is None:
                await stream.drained(ANSWER_S)
            else:
                due_ns = self._due_ns(time_ns)
                await self._sleep_until(due_ns)
                replayed.late_ns = max(replayed.late_ns, self._clock.now_ns() - due_ns)
            if not await stream.send(frame.observation, frame.images):
                return
        await stream.drained(ANSWER_S)

    def _due_ns(self, time_ns: int) -> int:
        """The moment of a recorded time; at full speed, now."""
        if self._plan.speed is None:
            return self._clock.now_ns()
        return self._begin_ns + round((time_ns - self._first_ns) / self._plan.speed)

    async def _sleep_until(self, instant_ns: int) -> None:
        left_ns = instant_ns - self._clock.now_ns()
        if left_ns > 0:
            await asyncio.sleep(left_ns / 1e9)


def reasons_to_differ(
    plan: ReplayPlan, sessions: Sequence[ReplayedSession], stored: Sequence[StoredSession]
) -> Iterator[str]:
    """Why answers of this replay may differ though nothing is wrong, in words."""
    if any(each.only_recorded or each.only_replayed for each in sessions):
        yield (
            "Other frames were superseded, dropped or not answered than in the recording: a service answers the newest "
            "frame when it has time. A policy with a history then sees another past."
        )
    modes = {each.stream.opened.mode.value for each in sessions if each.stream.opened}
    recorded = {each.contract.served_mode.value for each in stored if each.contract.served_mode}
    if recorded and modes != recorded:
        yield f"The recorded mode was {', '.join(sorted(recorded))}; here it is {', '.join(sorted(modes))}."
    if modes - {"serial"}:
        yield "Frames share passes, and drafts come from other frames: both depend on when frames arrive."
    if any(each.continued or each.recorded_schema.horizon > 1 for each in sessions):
        yield (
            "A chunk that continues the one in execution (rtc), and one of a policy that takes its delay as an input, "
            "follows from the latency that is expected. That is measured here; what the robot executed is as recorded."
        )
    if plan.speed is not None and plan.speed < 1.0:
        yield "At less than the recorded rate stamps are stretched, and the noise of flow policies follows from stamps."
    if len(sessions) > 1 or any(each.opening and each.opening.front for each in stored):
        yield "Robots share passes, and sums round differently with another number of rows; so do other processors."
