"""The observer that records sessions: each event becomes a record in a ring in memory, which another process writes.

It costs control some 10 µs per frame and never waits: a record that finds no room in the ring is lost and counted
there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from edgeflow.ipc.framing import Payload
from edgeflow.scheduler.pace import served_mode
from edgeflow.service.observation.pixels import image_bytes
from edgeflow.service.observation.requests import CheckedFrame, OpenRequest
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
    SessionRecord,
)
from edgeflow_client.recording.ring import RecordRing
from edgeflow_client.types import CameraSpec, ImageFormat

JPEG_SHARE = 18  # bytes of pixels per byte of a JPEG: 50 kB of 640x480
THUMBNAIL_BYTES_PER_S = 25_000  # of a camera: five JPEGs
HEAD_BYTES = 1_000  # of the records of a frame and its answer


class SessionRecorder(SessionObserver):
    """Records sessions in a ring.

    model: the service's name for the model. cameras: none, thumbnails or all, of which the recorder's process makes
    thumbnails. now: strictly increasing nanoseconds since 1970. log: receives the rate of bytes of each session.
    """

    def __init__(self, ring: RecordRing, *, model: str, cameras: str, now: Callable[[], int], log: EventLog) -> None:
        self._ring = ring
        self._model = model
        self._images = cameras != "none"
        self._whole = cameras == "all"
        self._now = now
        self._log = log

    def opened(self, session: OpenedSession) -> None:
        request, plan, cameras = session.request, session.plan, recorded_cameras(session.request)
        self._put(
            RecordedOpening(
                session=session.number,
                time_ns=self._now(),
                source="service",
                peer=session.caller.peer,
                principal=session.caller.principal,
                front=request.front,
                model=self._model,
                cameras=cameras,
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
            )
        )
        expected = self._bytes_per_s(cameras, 1e9 / max(request.control_period_ns, 1))
        self._log.event("recording_session", session=session.number, about_mb_per_s=round(expected / 1e6, 2))

    def observed(self, frame: ObservedFrame) -> None:
        checked = frame.frame
        images = recorded_images(checked) if self._images else ()
        self._put(
            RecordedObservation(
                session=frame.session,
                time_ns=self._now(),
                seq=checked.seq,
                epoch=frame.epoch,
                stamp_ns=checked.stamp_ns,
                image_bytes=tuple(map(len, images)),
                state=checked.state,
                instruction=frame.instruction,
                playing=checked.playing,
                arrived=checked.arrived,
                resting=checked.resting,
            ),
            images,
        )

    def answered(self, session: int, action: ActionEvent) -> None:
        timings, chunk, how = action.timings, action.chunk, action.execution
        self._put(
            RecordedAnswer(
                session=session,
                time_ns=self._now(),
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
            )
        )

    def notified(self, session: int, event: Event) -> None:
        now_ns = self._now()
        match event:
            case StatusEvent():
                self._put(
                    RecordedOutcome(
                        session=session,
                        time_ns=now_ns,
                        seq=event.seq,
                        last_seq=event.last_seq,
                        disposition=event.disposition,
                        code=event.code,
                        reason=event.reason,
                        text=event.text,
                    )
                )
            case ActionEvent():
                self._put(
                    RecordedHold(
                        session=session, time_ns=now_ns, epoch=event.epoch, command=event.command, reason=event.reason
                    )
                )
            case NoticeEvent():
                self._put(
                    RecordedNotice(
                        session=session,
                        time_ns=now_ns,
                        epoch=event.epoch,
                        notice=event.kind,
                        code=event.code,
                        text=event.text,
                    )
                )

    def closed(self, session: ClosedSession) -> None:
        self._put(
            RecordedClosing(
                session=session.number,
                time_ns=self._now(),
                epoch=session.epoch,
                code=session.end.code,
                reason=session.end.reason.label,
            )
        )

    def _bytes_per_s(self, cameras: Sequence[CameraSpec], rate_hz: float) -> float:
        """Bytes that a recording at this rate of frames takes, about."""
        if self._whole:
            return rate_hz * (HEAD_BYTES + sum(map(_image_bytes, cameras)))
        return rate_hz * HEAD_BYTES + (THUMBNAIL_BYTES_PER_S * len(cameras) if self._images else 0)

    def _put(self, record: SessionRecord, images: tuple[Payload, ...] = ()) -> None:
        try:
            self._ring.put(ENCODER.encode(record), images)
        except Exception:  # a record that cannot be made costs no robot its session
            self._ring.lose()


def recorded_cameras(request: OpenRequest) -> tuple[CameraSpec, ...]:
    """The cameras whose images arrive here: all that the robot declared, or where another process decodes them, those
    of the policy, as RGB8.
    """
    if not request.decoded:
        return request.cameras
    return tuple(replace(each, format=ImageFormat.RGB8, send=None) for each in request.policy_cameras)


def recorded_images(frame: CheckedFrame) -> tuple[Payload, ...]:
    """An image for each of these cameras: the bytes that arrived here."""
    return frame.images if frame.pixels is None else frame.pixels


def _image_bytes(camera: CameraSpec) -> int:
    pixels = image_bytes(camera)
    return pixels if camera.format is ImageFormat.RGB8 else pixels // JPEG_SHARE
