"""Session records as Foxglove's messages: images, joints, poses and lines of a log, which its app and others show."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import Any

import foxglove
import numpy as np
from foxglove.channels import (
    CompressedImageChannel,
    JointStatesChannel,
    LogChannel,
    PoseInFrameChannel,
    RawImageChannel,
)
from foxglove.messages import (
    CompressedImage,
    JointState,
    JointStates,
    Log,
    LogLevel,
    PoseInFrame,
    Quaternion,
    RawImage,
    Timestamp,
    Vector3,
)
from foxglove.messages import Pose as PoseMessage
from PIL import Image

from edgeflow_client.pose import from_euler_xyz, from_rotvec
from edgeflow_client.recording.records import (
    AnySessionRecord,
    RecordedAnswer,
    RecordedClosing,
    RecordedExecution,
    RecordedHold,
    RecordedNotice,
    RecordedObservation,
    RecordedOpening,
    RecordedOutcome,
    image_topics,
)
from edgeflow_client.types import CameraSpec, Command, Disposition, ImageFormat

MOST_SESSIONS = 1024  # open ones; more are those whose end was lost
MOST_TEXT = 2000  # characters of a line
THUMBNAIL = (160, 160)  # pixels at most
THUMBNAIL_NS = 200_000_000  # between two of a camera
_POSITION = ("x", "y", "z")
_ANGLES = ("roll", "pitch", "yaw")
_QUATERNION = ("qx", "qy", "qz", "qw")
Image.MAX_IMAGE_PIXELS = None  # sizes are compared with those that the robot declared


class SessionMessages:
    """The messages of all open sessions."""

    def __init__(self, context: foxglove.Context, cameras: str) -> None:
        """cameras: "none", "thumbnails" or "all"."""
        self._context, self._cameras = context, cameras
        self._sessions: dict[int, _Session] = {}
        self._closed_channels = 0

    @property
    def channels(self) -> int:
        """Channels that were made, closed ones included."""
        return self._closed_channels + sum(session.channels for session in self._sessions.values())

    def log(self, record: AnySessionRecord, payload: memoryview) -> None:
        """Log the messages of a record. payload: the images of a frame."""
        if isinstance(record, RecordedOpening):
            self._close(record.session)
            self._sessions[record.session] = _Session(self._context, record, self._cameras)
            while len(self._sessions) > MOST_SESSIONS:
                self._close(next(iter(self._sessions)))
        session = self._sessions.get(record.session)
        if session is not None:
            session.log(record, payload)
        if isinstance(record, RecordedClosing):
            self._close(record.session)

    def _close(self, session: int) -> None:
        if session in self._sessions:
            closed = self._sessions.pop(session)
            self._closed_channels += closed.channels
            closed.close()


class _Session:
    """The messages of a session."""

    def __init__(self, context: foxglove.Context, opening: RecordedOpening, cameras: str) -> None:
        self._context, self._opening, self._cameras = context, opening, cameras
        self._channels: dict[str, Any] = {}
        names = [camera.name for camera in opening.cameras]
        self._images = image_topics(opening.session, names)
        self._thumbnails = image_topics(opening.session, names, "thumbnails")
        self._next_thumbnail_ns = 0
        self._state_names = _state_names(opening)
        schema = opening.schema
        self._action_names = schema.names if schema is not None else ()
        self._rotvec = schema is not None and schema.rotation == "rotvec"
        absolute = (
            {name for name, moves in zip(schema.names, schema.relative, strict=True) if not moves} if schema else set()
        )
        self._state_has_pose = set(_POSITION) <= set(self._state_names)
        self._action_has_pose = not self._state_has_pose and set(_POSITION) <= absolute

    @property
    def channels(self) -> int:
        return len(self._channels)

    def log(self, record: AnySessionRecord, payload: memoryview) -> None:
        stamp = record.time_ns
        if isinstance(record, RecordedObservation):
            self._log_images(record, payload)
            self._log_joints("state", self._state_names, record.state, stamp)
            if self._state_has_pose:
                self._log_pose(self._state_names, record.state, stamp, rotvec=False)
        elif isinstance(record, RecordedAnswer):
            row = record.values[: len(self._action_names)]
            self._log_joints("action", self._action_names, row, stamp)
            if self._action_has_pose:
                self._log_pose(self._action_names, row, stamp, rotvec=self._rotvec)
        elif isinstance(record, RecordedExecution):
            self._log_joints("executed", self._action_names, record.values, stamp)
        else:
            self._log_line(record)

    def close(self) -> None:
        for channel in self._channels.values():
            channel.close()

    def _log_images(self, frame: RecordedObservation, payload: memoryview) -> None:
        cameras, sizes = self._opening.cameras, frame.image_bytes
        if self._cameras == "none" or not len(payload):
            return
        if len(sizes) != len(cameras) or sum(sizes) != len(payload):
            self._line(frame.time_ns, LogLevel.Warning, f"images of frame {frame.seq} are not those of its cameras")
            return
        thumbnails = self._cameras == "thumbnails"
        if thumbnails and frame.time_ns < self._next_thumbnail_ns:
            return
        self._next_thumbnail_ns = frame.time_ns + THUMBNAIL_NS
        at = 0
        for camera, size, topic, small in zip(cameras, sizes, self._images, self._thumbnails, strict=True):
            data, at = bytes(payload[at : at + size]), at + size
            if not thumbnails:
                self._log_image(topic, camera, data, camera.format, frame.time_ns)
            elif thumbnail := _thumbnail(camera, data):
                self._log_image(small, camera, thumbnail, ImageFormat.JPEG, frame.time_ns)

    def _log_image(self, topic: str, camera: CameraSpec, data: bytes, encoding: ImageFormat, stamp: int) -> None:
        common: dict[str, Any] = {"timestamp": _timestamp(stamp), "frame_id": camera.name, "data": data}
        if encoding is ImageFormat.JPEG:
            self._log(topic, CompressedImageChannel, CompressedImage(**common, format="jpeg"), stamp)
            return
        image = RawImage(**common, width=camera.width, height=camera.height, step=3 * camera.width, encoding="rgb8")
        self._log(topic, RawImageChannel, image, stamp)

    def _log_joints(self, topic: str, names: Sequence[str], values: Sequence[float], stamp: int) -> None:
        if not values or len(names) != len(values):
            return
        joints = [JointState(name=name, position=value) for name, value in zip(names, values, strict=True)]
        message = JointStates(timestamp=_timestamp(stamp), joints=joints)
        self._log(self._topic(topic), JointStatesChannel, message, stamp)

    def _log_pose(self, names: Sequence[str], values: Sequence[float], stamp: int, *, rotvec: bool) -> None:
        if len(names) != len(values) or not all(map(math.isfinite, values)):
            return
        named = dict(zip(names, values, strict=True))
        x, y, z, w = 0.0, 0.0, 0.0, 1.0
        if set(_QUATERNION) <= named.keys():
            x, y, z, w = (named[name] for name in _QUATERNION)
        elif set(_ANGLES) <= named.keys():
            angles = np.array([named[name] for name in _ANGLES])
            w, x, y, z = map(float, from_rotvec(angles) if rotvec else from_euler_xyz(angles))
        position = Vector3(**{name: named[name] for name in _POSITION})
        pose = PoseMessage(position=position, orientation=Quaternion(x=x, y=y, z=z, w=w))
        message = PoseInFrame(timestamp=_timestamp(stamp), frame_id="base", pose=pose)
        self._log(self._topic("pose"), PoseInFrameChannel, message, stamp)

    def _log_line(self, record: AnySessionRecord) -> None:
        if isinstance(record, RecordedOpening):
            self._line(record.time_ns, LogLevel.Info, f"opened by {record.peer}: {record.instruction}")
        elif isinstance(record, RecordedHold):
            level = LogLevel.Error if record.command is Command.STOP else LogLevel.Warning
            self._line(record.time_ns, level, f"{record.command.name}: {record.reason}")
        elif isinstance(record, RecordedOutcome) and record.disposition is not Disposition.ACTED:
            level = LogLevel.Debug if record.disposition is Disposition.SUPERSEDED else LogLevel.Warning
            last = f" to {record.last_seq}" if record.last_seq > record.seq else ""
            why = ": ".join(filter(None, (record.reason or record.code, record.text)))
            self._line(record.time_ns, level, f"frame {record.seq}{last} {record.disposition.value} {why}")
        elif isinstance(record, RecordedNotice):
            self._line(record.time_ns, LogLevel.Warning, f"{record.notice} {record.code} {record.text}")
        elif isinstance(record, RecordedClosing):
            self._line(record.time_ns, LogLevel.Info, f"closed {record.reason or record.code}")

    def _line(self, stamp: int, level: LogLevel, text: str) -> None:
        name = f"session {self._opening.session}"
        message = Log(timestamp=_timestamp(stamp), level=level, message=text[:MOST_TEXT].strip(), name=name)
        self._log(self._topic("log"), LogChannel, message, stamp)

    def _topic(self, name: str) -> str:
        return f"/session-{self._opening.session}/{name}"

    def _log(self, topic: str, kind: Any, message: Any, stamp: int) -> None:
        channel = self._channels.get(topic)
        if channel is None:
            channel = self._channels[topic] = kind(topic, context=self._context)
        channel.log(message, log_time=stamp)


def _timestamp(stamp: int) -> Timestamp:
    return Timestamp(*divmod(stamp, 10**9))


def _state_names(opening: RecordedOpening) -> tuple[str, ...]:
    """A name per value of the state; with that of its vector where there are several."""
    several = len(opening.state) > 1
    names: list[str] = []
    for vector in opening.state:
        elements = vector.elements or tuple(f"{vector.name}[{index}]" for index in range(vector.size))
        names += [f"{vector.name}.{name}" if several and vector.elements else name for name in elements]
    return tuple(names)


def _thumbnail(camera: CameraSpec, data: bytes) -> bytes:
    """A small JPEG of an image; empty if it is not the image that its camera declared."""
    size = (camera.width, camera.height)
    try:
        if camera.format is ImageFormat.JPEG:
            image: Image.Image = Image.open(io.BytesIO(data), formats=["JPEG"])
            if image.size != size:
                return b""
            image.draft("RGB", THUMBNAIL)  # decodes at a fraction of the size
        else:
            image = Image.frombytes("RGB", size, data)
        image.thumbnail(THUMBNAIL)
        out = io.BytesIO()
        image.convert("RGB").save(out, "JPEG", quality=70)
    except Exception:  # Pillow raises anything for bytes from a robot
        return b""
    return out.getvalue()
