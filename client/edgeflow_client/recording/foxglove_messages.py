"""Session records as Foxglove's messages, so that its app and others show them."""

from __future__ import annotations

from typing import Any

import foxglove
from foxglove.channels import CompressedImageChannel, RawImageChannel
from foxglove.messages import CompressedImage, RawImage, Timestamp

from edgeflow_client.recording.records import image_topics


class SessionMessages:
    """Writes the messages of all open sessions."""

    def __init__(self, context: foxglove.Context, cameras: str) -> None:
        self._context, self._cameras = context, cameras
        self._openings: dict[int, dict[str, Any]] = {}
        self._channels: dict[int, dict[str, Any]] = {}

    def log(self, record: dict[str, Any], payload: memoryview) -> None:
        """Log the messages of a record."""
        session = record["session"]
        if record["kind"] == "opened":
            self._openings[session] = record
            self._channels.setdefault(session, {})
        elif record["kind"] == "closed":
            self._openings.pop(session, None)
            for channel in self._channels.pop(session, {}).values():
                channel.close()
        elif record["kind"] == "frame" and self._cameras == "all" and session in self._openings:
            self._images(record, payload, self._openings[session])

    def _images(self, record: dict[str, Any], payload: memoryview, opening: dict[str, Any]) -> None:
        sizes, cameras = record["image_bytes"], opening["cameras"]
        if sum(sizes) != len(payload) or len(sizes) > len(cameras):
            return
        at, channels = 0, self._channels[record["session"]]
        stamp = Timestamp(*divmod(record["time_ns"], 10**9))
        topics = image_topics(record["session"], [camera["name"] for camera in cameras])
        for camera, topic, size in zip(cameras, topics, sizes, strict=False):
            data, at = bytes(payload[at : at + size]), at + size
            if camera["format"] == "jpeg":
                message: Any = CompressedImage(timestamp=stamp, frame_id=camera["name"], data=data, format="jpeg")
                kind: Any = CompressedImageChannel
            else:
                width, height = camera["width"], camera["height"]
                message = RawImage(
                    timestamp=stamp,
                    frame_id=camera["name"],
                    width=width,
                    height=height,
                    encoding="rgb8",
                    step=3 * width,
                    data=data,
                )
                kind = RawImageChannel
            if topic not in channels:
                channels[topic] = kind(topic, context=self._context)
            channels[topic].log(message, log_time=record["time_ns"])
