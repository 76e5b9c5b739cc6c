"""The observer that records sessions: each event becomes a record in a ring in memory, which another process writes.

It never waits: a record that finds no room in the ring is lost and counted there. Events are kept for WRITE_S before
they are written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from time import monotonic_ns
from typing import Any, TypeAlias

from edgeflow.ipc.framing import Payload
from edgeflow.scheduler.pace import served_mode
from edgeflow.service.observation.pixels import image_bytes
from edgeflow.service.observation.requests import TRACE_HEADERS, recorded_cameras, recorded_images
from edgeflow.service.observe.log import EventLog
from edgeflow.service.sessions.frames import ActionEvent, Event, NoticeEvent, StatusEvent
from edgeflow.service.sessions.observers import ClosedSession, ObservedFrame, OpenedSession, SessionObserver
from edgeflow_client.recording.records import (
    ENCODER,
    RecordedAnswer,
    RecordedClosing,
    RecordedHold,
    RecordedNotice,
    RecordedObservation,
    RecordedOpening,
    RecordedOutcome,
    RecordedPass,
    SessionRecord,
)
from edgeflow_client.recording.ring import RecordRing
from edgeflow_client.types import CameraSpec, Disposition, ImageFormat

JPEG_SHARE = 18  # bytes of pixels per byte of a JPEG: 50 kB of 640x480
THUMBNAIL_BYTES_PER_S = 25_000  # of a camera: five JPEGs
HEAD_BYTES = 1_000  # of the records of a frame and its answer
WRITE_S = 0.2
MOST_WAITING = 96  # events, which keep the loop for a fraction of a millisecond
WallClock: TypeAlias = Callable[[int], int]
Written: TypeAlias = tuple[SessionRecord, tuple[Payload, ...]]
"""A record with its images."""


class SessionRecorder(SessionObserver):
    """Records sessions in a ring.

    model: the service's name for the model. cameras: none, thumbnails or all, of which the recorder's process makes
    thumbnails. wall: as `wall_clock` gives it. log: receives the rate of bytes of each session; None = nobody does.
    """

    def __init__(
        self, ring: RecordRing, *, model: str, cameras: str, wall: WallClock, log: EventLog | None = None
    ) -> None:
        self._ring = ring
        self._model = model
        self._images = cameras != "none"
        self._whole = cameras == "all"
        self._wall = wall
        self._log = log
        self._waiting: list[tuple[Callable[..., Written], int, tuple[Any, ...]]] = []
        self._due: asyncio.TimerHandle | None = None

    def opened(self, session: OpenedSession) -> None:
        self._keep(_opening, session, self._model)
        if self._log is None:
            return
        request = session.request
        expected = self._bytes_per_s(recorded_cameras(request), 1e9 / max(request.control_period_ns, 1))
        self._log.event("recording_session", session=session.number, about_mb_per_s=round(expected / 1e6, 2))

    def observed(self, frame: ObservedFrame) -> None:
        self._keep(_observation, frame, self._images)

    def answered(self, session: int, action: ActionEvent) -> None:
        self._keep(_answer, session, action)

    def notified(self, session: int, event: Event) -> None:
        if not (isinstance(event, StatusEvent) and event.disposition is Disposition.ACTED):  # its answer is there
            self._keep(_notification, session, event)

    def closed(self, session: ClosedSession) -> None:
        self._keep(_closing, session)

    def write(self) -> None:
        """Write the records of the events so far."""
        waiting, self._waiting = self._waiting, []
        if self._due is not None:
            self._due.cancel()
            self._due = None
        for make, at_ns, event in waiting:
            try:
                record, images = make(self._wall(at_ns), *event)
                self._ring.put(ENCODER.encode(record), images)
            except Exception:  # a record that cannot be made costs no robot its session
                self._ring.lose()

    def _keep(self, make: Callable[..., Written], *event: Any) -> None:
        """Keep an event until several are written in a row: by then, code and data of the first have filled the
        processor's caches for the others.
        """
        self._waiting.append((make, monotonic_ns(), event))
        if self._due is None:
            self._due = asyncio.get_running_loop().call_later(WRITE_S, self.write)
        elif len(self._waiting) >= MOST_WAITING:
            self.write()

    def _bytes_per_s(self, cameras: Sequence[CameraSpec], rate_hz: float) -> float:
        """Bytes that a recording at this rate of frames takes, about."""
        if self._whole:
            return rate_hz * (HEAD_BYTES + sum(map(_image_bytes, cameras)))
        return rate_hz * HEAD_BYTES + (THUMBNAIL_BYTES_PER_S * len(cameras) if self._images else 0)


def _opening(time_ns: int, session: OpenedSession, model: str) -> Written:
    request, plan = session.request, session.plan
    return RecordedOpening(
        session=session.number,
        time_ns=time_ns,
        source="service",
        peer=session.caller.peer,
        principal=session.caller.principal,
        front=request.front,
        model=model,
        cameras=recorded_cameras(request),
        policy_cameras=tuple(each.name for each in request.policy_cameras),
        state=request.state,
        instruction=request.instruction,
        control_period_ns=request.control_period_ns,
        max_action_age_ns=request.max_action_age_ns,
        mode=request.mode,
        served_mode=served_mode(plan.mode, plan.pace, plan.stages),
        depth=request.depth,
        tolerance_bins=request.tolerance_bins,
        max_passes=request.max_passes,
        unnorm_key=request.unnorm_key,
        chunks=request.chunks,
        execution=request.execution,
        schema=session.schema,
        **dict(zip(TRACE_HEADERS, request.trace, strict=False)),
    ), ()


def _observation(time_ns: int, seen: ObservedFrame, with_images: bool) -> Written:
    frame = seen.frame
    images = recorded_images(frame) if with_images else ()
    return RecordedObservation(
        session=seen.session,
        time_ns=time_ns,
        seq=frame.seq,
        epoch=seen.epoch,
        stamp_ns=frame.stamp_ns,
        image_bytes=tuple(map(len, images)),
        state=frame.state,
        instruction=seen.instruction,
        playing=frame.playing,
        arrived=frame.arrived,
        resting=frame.resting,
        waited_ns=seen.waited_ns,
    ), images


def _answer(time_ns: int, session: int, action: ActionEvent) -> Written:
    timings, chunk, how = action.timings, action.chunk, action.execution
    return RecordedAnswer(
        session=session,
        time_ns=time_ns,
        seq=action.seq,
        epoch=action.epoch,
        stamp_ns=action.stamp_ns,
        values=action.values,
        horizon=chunk.horizon if chunk is not None else 1,
        step_ms=chunk.step_ms if chunk is not None else 0.0,
        token_ids=action.token_ids,
        decode_ns=timings.decode_ns,
        queue_ns=timings.queue_ns,
        inference_ns=timings.inference_ns,
        passes=timings.passes,
        server_ns=action.server_ns,
        age_ns=action.age_ns,
        settled=action.settled,
        valid_for_ms=action.valid_for_ms,
        max_age_ms=action.max_age_ms,
        report=action.report,
        execution=how.execution if how is not None else None,
        rows=how.rows if how is not None else 0,
        rate_percent=how.rate_percent if how is not None else 100,
        from_arrival=how is not None and how.from_arrival,
        decoding_ns=action.decoding_ns,
        spans=tuple(
            RecordedPass(each.start_ns, each.end_ns, each.steps, each.prefills, each.decodes) for each in action.spans
        ),
    ), ()


def _notification(time_ns: int, session: int, event: StatusEvent | ActionEvent | NoticeEvent) -> Written:
    match event:
        case StatusEvent():
            return RecordedOutcome(
                session=session,
                time_ns=time_ns,
                seq=event.seq,
                last_seq=event.last_seq,
                disposition=event.disposition,
                code=event.code,
                reason=event.reason,
                text=event.text,
            ), ()
        case ActionEvent():
            return RecordedHold(
                session=session, time_ns=time_ns, epoch=event.epoch, command=event.command, reason=event.reason
            ), ()
        case NoticeEvent():
            return RecordedNotice(
                session=session,
                time_ns=time_ns,
                epoch=event.epoch,
                notice=event.kind,
                code=event.code,
                text=event.text,
            ), ()


def _closing(time_ns: int, session: ClosedSession) -> Written:
    return RecordedClosing(
        session=session.number,
        time_ns=time_ns,
        epoch=session.epoch,
        code=session.end.code,
        reason=session.end.reason.label,
    ), ()


def _image_bytes(camera: CameraSpec) -> int:
    pixels = image_bytes(camera)
    return pixels if camera.format is ImageFormat.RGB8 else pixels // JPEG_SHARE
