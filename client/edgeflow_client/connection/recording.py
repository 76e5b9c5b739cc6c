"""A robot's own recording of its session: what it pushed, what the service said, what it executed.

Images are recorded as they were sent, after shrinking and encoding. So a replay sends the same bytes, and the recording
of a robot agrees with that of its service. A frame that was never sent has no images.
"""

from __future__ import annotations

import functools
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Concatenate, ParamSpec

import msgspec

from edgeflow_client import __version__
from edgeflow_client.actions import Action, Directive
from edgeflow_client.connection.link import Incidents
from edgeflow_client.connection.wire import (
    COMMANDS,
    DISPOSITIONS,
    EXECUTIONS,
    Opened,
    SessionSettings,
    rate_of,
    report_of,
)
from edgeflow_client.errors import ConfigError, EdgeflowError, FailedPrecondition
from edgeflow_client.pose import Pose
from edgeflow_client.reasons import Reason
from edgeflow_client.recording.recorder import (
    Recorder,
    RecorderSettings,
    check_recorder,
    wall_clock,
)
from edgeflow_client.recording.records import (
    ENCODER,
    MOST_VALUES,
    TOPIC,
    AnySessionRecord,
    RecordedAnswer,
    RecordedClosing,
    RecordedExecution,
    RecordedHold,
    RecordedNotice,
    RecordedObservation,
    RecordedOpening,
    RecordedOutcome,
    session_schema,
)
from edgeflow_client.recording.supervision import RecorderNews
from edgeflow_client.rpc import control_pb2 as pb
from edgeflow_client.trajectory import Arrived, ChunkReport, Playing
from edgeflow_client.types import CameraSpec, Command, Disposition, Execution, Mode

MOST_CHARACTERS = 65_536  # of a text in a record
_log = logging.getLogger("edgeflow_client")
_Given = ParamSpec("_Given")


def _harmless(
    method: Callable[Concatenate[RobotRecording, _Given], None],
) -> Callable[Concatenate[RobotRecording, _Given], None]:
    """A method that never raises into the robot's loop, and does nothing in a process forked from the robot's."""

    @functools.wraps(method)
    def guarded(recording: RobotRecording, /, *args: _Given.args, **kwargs: _Given.kwargs) -> None:
        if not recording.is_ours:
            return
        try:
            method(recording, *args, **kwargs)
        except Exception as error:
            recording.incidents.unexpected(error)

    return guarded


class RobotRecording:
    """Writes a session's records for the recorder process. Any thread may call it; nothing waits, nothing raises.

    The robot's numbers of frames, which continue over reconnections, replace those of the stream.
    """

    def __init__(self, directory: Path, address: str) -> None:
        """directory: of the files. address: of the service. ConfigError if nothing can be recorded there."""
        self.incidents = Incidents("the recording")
        self._address = address
        self._settings = RecorderSettings(
            directory=str(directory.expanduser()), source="robot", facts={"edgeflow": __version__}
        )
        check_recorder(self._settings)
        self._lock = threading.Lock()
        self._process = 0
        self._is_open = False
        self._waiting: dict[int, RecordedObservation] = {}  # pushed, and neither sent nor replaced
        self._read: Directive | None = None
        self._held = (Command.HOLD, "")
        self._epoch = 0

    @property
    def is_ours(self) -> bool:
        """False before `start`, and in a process that was forked after it."""
        return os.getpid() == self._process

    def start(self) -> None:
        """Start the recorder process. ConfigError without memory for it."""
        try:
            self._recorder = Recorder(self._settings, {TOPIC: session_schema()}, _tell)
        except OSError as error:
            raise ConfigError(f"record: no memory to record to: {error.strerror}") from None
        self._ring = self._recorder.ring(TOPIC)
        self._wall_ns = wall_clock(self._ring)
        self._process = os.getpid()
        self._recorder.start()

    def stop(self, error: EdgeflowError | None) -> None:
        """The session is closed: write everything, and close the file. error: if the service rejected it."""
        if self.is_ours:
            self._closed(error)
            self._recorder.stop()

    @_harmless
    def opened(self, settings: SessionSettings, instruction: str, opened: Opened) -> None:
        """A stream was opened: the first one, or one after a reconnection."""
        self._is_open = True
        limit_s = settings.max_action_age_s
        self._write(
            RecordedOpening(
                session=0,
                time_ns=0,
                source="robot",
                peer=_text(self._address),
                model=_text(opened.model),
                cameras=tuple(_as_sent(camera, opened) for camera in settings.cameras),
                state=settings.state,
                instruction=_text(instruction),
                control_period_ns=round(settings.control_period_s * 1e9),
                max_action_age_ns=round(limit_s * 1e9) if limit_s is not None and math.isfinite(limit_s) else None,
                mode=None if settings.mode is None else Mode(settings.mode),
                served_mode=opened.mode,
                depth=settings.depth,
                tolerance_bins=settings.tolerance_bins,
                max_passes=settings.max_passes,
                unnorm_key=_text(settings.unnorm_key),
                chunks=settings.chunks,
                execution=Execution(settings.execution),
                schema=opened.schema,
            )
        )

    @_harmless
    def pushed(self, frame: pb.Frame, first_seq: int, epoch: int, pose: Pose | None) -> None:
        """A frame was pushed, and will be sent or not. first_seq: offset of the stream's numbers."""
        playing, arrived = frame.playing, frame.arrived
        seq = frame.seq + first_seq
        self._waiting[seq] = RecordedObservation(
            session=0,
            time_ns=0,
            seq=seq,
            epoch=epoch,
            stamp_ns=frame.stamp_ns,
            state=tuple(frame.proprio),
            instruction=_text(frame.instruction),
            playing=Playing(playing.seq + first_seq, playing.step, playing.start_ns) if playing.seq else None,
            arrived=Arrived(arrived.seq + first_seq, arrived.age_ns) if arrived.seq else None,
            resting=frame.resting,
            pose=_numbers(pose),
        )

    @_harmless
    def sent(self, seq: int, images: Sequence[bytes]) -> None:
        """A frame is sent, with these images."""
        observation = self._waiting.pop(seq, None)
        if observation is not None:
            self._write(msgspec.structs.replace(observation, image_bytes=tuple(map(len, images))), images)

    @_harmless
    def left(self, numbers: Iterable[int], disposition: Disposition, reason: str, code: str = "") -> None:
        """Frames left without the service: replaced, withdrawn, or lost with their stream."""
        for seq in numbers:
            observation = self._waiting.pop(seq, None)
            if observation is not None:
                self._write(observation)
            self._write(
                RecordedOutcome(session=0, time_ns=0, seq=seq, disposition=disposition, code=code, reason=reason)
            )

    @_harmless
    def heard(self, message: pb.ServerMessage, first_seq: int, now_ns: int) -> None:
        """A message came. first_seq: offset of the stream's numbers."""
        match message.WhichOneof("kind"):
            case "action" if COMMANDS.get(message.action.command) is Command.ACT:
                self._write(_answer(message.action, first_seq, now_ns))
            case "frame_status" if message.frame_status.disposition != pb.DISPOSITION_ACTED:  # its answer is there
                status = message.frame_status
                self._write(
                    RecordedOutcome(
                        session=0,
                        time_ns=0,
                        seq=status.seq + first_seq if status.seq else 0,
                        last_seq=status.last_seq + first_seq if status.last_seq else 0,
                        disposition=DISPOSITIONS.get(status.disposition, Disposition.DROPPED),
                        code=status.code,
                        reason=status.reason,
                        text=_text(status.text),
                    )
                )
            case "notice":
                notice = message.notice
                self._notice(notice.kind, notice.code, notice.text, notice.epoch)

    @_harmless
    def held(self, directive: Directive, epoch: int) -> None:
        """The robot holds or stops from now on."""
        self._epoch, held = epoch, (directive.command, str(directive.reason))
        if held != self._held:
            self._held = held
            self._write(RecordedHold(session=0, time_ns=0, epoch=epoch, command=held[0], reason=held[1]))

    @_harmless
    def read(self, directive: Directive, now_ns: int) -> None:
        """The robot reads its directive, an action to be executed unless it read it before."""
        if directive is self._read:
            return
        self._read, action = directive, directive.action
        if action is None:
            return
        self._held = (Command.ACT, "")
        self._write(
            RecordedExecution(
                session=0,
                time_ns=0,
                seq=action.seq,
                row=action.step,
                values=tuple(action.values.tolist()),
                age_ns=max(now_ns - action.stamp_ns, 0),
                pose=_target(action),
            )
        )

    @_harmless
    def stream_ended(self, error: EdgeflowError, lost: Sequence[int]) -> None:
        """The stream ended, or none could be opened. lost: the frames in flight."""
        reason = getattr(error, "reason", "")
        self.left(dict.fromkeys([*lost, *self._waiting]), Disposition.DROPPED, reason, error.code)
        if self._is_open:
            self._notice("stream_ended", error.code, f"{reason}: {error.text}")

    @_harmless
    def _closed(self, error: EdgeflowError | None) -> None:
        if self._is_open:
            code, reason = ("", Reason.CLOSED) if error is None else (error.code, getattr(error, "reason", ""))
            self._write(RecordedClosing(session=0, time_ns=0, epoch=self._epoch, code=code, reason=str(reason)))

    def _notice(self, kind: str, code: str, text: str, epoch: int = 0) -> None:
        self._write(RecordedNotice(session=0, time_ns=0, epoch=epoch, notice=kind, code=code, text=_text(text)))

    def _write(self, record: AnySessionRecord, images: Sequence[bytes] = ()) -> None:
        with self._lock:  # so that times increase as numbers do
            time_ns = self._wall_ns(time.monotonic_ns())
            self._ring.put(ENCODER.encode(msgspec.structs.replace(record, time_ns=time_ns)), images)


def _tell(news: RecorderNews) -> None:
    level = logging.INFO if news.kind in ("file", "deleted", "recovered", "live") else logging.WARNING
    _log.log(level, "%s", news.text)


def _as_sent(camera: CameraSpec, opened: Opened) -> CameraSpec:
    """A camera whose images are what was sent."""
    width, height = opened.sizes[camera.name] if camera.resize else (camera.width, camera.height)
    return replace(camera, width=width, height=height, resize=False)


def _answer(action: pb.Action, first_seq: int, now_ns: int) -> RecordedAnswer:
    """An action as it was received. Values that are not finite are left out, and the robot holds."""
    values, timings = tuple(action.values), action.timings
    report = report_of(action, first_seq)
    return RecordedAnswer(
        session=0,
        time_ns=0,
        seq=action.seq + first_seq,
        epoch=action.epoch,
        stamp_ns=action.stamp_ns,
        values=values if len(values) <= MOST_VALUES and all(map(math.isfinite, values)) else (),
        horizon=action.horizon or 1,
        step_ms=action.step_ms if math.isfinite(action.step_ms) else 0.0,
        token_ids=tuple(action.token_ids),
        decode_ns=timings.decode_ns,
        queue_ns=timings.queue_ns,
        inference_ns=timings.inference_ns,
        passes=timings.passes,
        server_ns=timings.server_ns,
        age_ns=max(now_ns - action.stamp_ns, 0),
        settled=action.settled,
        valid_for_ms=action.valid_for_ms,
        max_age_ms=action.max_age_ms,
        report=report if _is_finite(report) else ChunkReport(continues=report.continues),
        execution=EXECUTIONS.get(action.execution),
        rows=action.rows,
        rate_percent=round(100 * rate_of(action)),
        from_arrival=action.from_arrival,
    )


def _is_finite(report: ChunkReport) -> bool:
    limits = (number for each in report.limited for number in (each.beyond, each.changed))
    scores = (
        number for each in report.candidates for number in (each.score, each.distance, each.roughness, each.beyond)
    )
    return all(map(math.isfinite, (*limits, *scores)))


def _target(action: Action) -> tuple[float, ...]:
    """The pose to which an action moves the tool, as `Directive.tool` resolves it."""
    if action.frame_pose is None or not action.moves_tool:
        return ()
    try:
        return _numbers(action.target().pose)
    except FailedPrecondition:
        return ()


def _numbers(pose: Pose | None) -> tuple[float, ...]:
    return () if pose is None else (*pose.position.tolist(), *pose.wxyz.tolist())


def _text(text: str) -> str:
    return text[:MOST_CHARACTERS]
