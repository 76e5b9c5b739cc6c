"""The recorder process: takes records out of their rings, and writes files and Foxglove's live socket.

It runs as `python -m edgeflow_client.recording.process DESCRIPTOR`, a file with a RecorderJob as JSON. When its
standard input ends or says something, or its parent dies, it writes what is left, closes the file and ends. Its
standard output has a line of JSON for each piece of news.
"""

from __future__ import annotations

import contextlib
import sys
import time
from typing import Any

import foxglove
import msgspec
from foxglove.websocket import WebSocketServer

from edgeflow_client.recording.files import RecordingFiles
from edgeflow_client.recording.foxglove_messages import SessionMessages
from edgeflow_client.recording.kept import KeptRecords
from edgeflow_client.recording.recorder import RecorderJob
from edgeflow_client.recording.records import DECODER, NUMBER, TOPIC
from edgeflow_client.recording.ring import RecordRing
from edgeflow_client.recording.supervision import READ_S, RecorderNews, run_reader, tell

FLUSH_S = 0.5
DRAIN_S = 2.0  # at the end, for producers that still write
MOST_CHANNELS = 30_000  # made while a file is written: MCAP numbers those of a file with 16 bits
BACKLOG = 64  # messages that wait for a slow viewer, images among them
LOOPBACK = "127.0.0.1"
_NO_IMAGES = memoryview(b"")


class RecorderProcess:
    """Moves records from rings to files and viewers."""

    def __init__(self, job: RecorderJob) -> None:
        self._settings = job.settings
        self._rings = {topic: RecordRing(descriptor) for topic, descriptor in job.rings.items()}
        self._kept = KeptRecords(job.kept)
        self._context = foxglove.Context()
        self._channels = {topic: _channel(topic, schema, self._context) for topic, schema in job.schemas.items()}
        self._messages = SessionMessages(self._context, job.settings.cameras)
        self._files = RecordingFiles(job.settings, job.run, self._context, tell) if job.settings.directory else None
        self._ends: dict[str, int] = {}  # what may be released once it is written
        self._most_bytes = job.settings.buffer_bytes // 4
        self._logged = self._logged_bytes = self._lost = 0
        self._channels_before = 0  # made before this file
        self._flushed_at = time.monotonic()
        self._closing = False
        self._server = self._serve() if job.settings.live_port is not None else None  # serves until it is garbage
        for topic, kept in self._kept:
            self._log_messages(topic, kept.head, _NO_IMAGES)

    def step(self) -> int:
        """Log what had been written at the previous step, and flush when it is time; the number of records."""
        if self._files is not None and self._files.due:
            self.flush()
        count = 0
        for topic, ring in self._rings.items():
            for record in ring.look():
                count += 1
                self._logged += self._log(topic, record.number, record.head, record.payload)
                self._ends[topic] = record.end
                self._logged_bytes += len(record.head) + len(record.payload)
                if self._logged_bytes >= self._most_bytes:  # before the ring is full
                    self.flush()
        if time.monotonic() - self._flushed_at >= FLUSH_S:
            self.flush()
        return count

    def flush(self) -> None:
        """Write what was logged, then release it; begin a file if there is none."""
        self._flushed_at = time.monotonic()
        if self._files is not None and not self._files.flush() and self._logged:
            self._count_lost(self._logged)
        self._kept.save()
        for topic, end in self._ends.items():
            self._rings[topic].release(end)
        self._ends.clear()
        self._logged = self._logged_bytes = 0
        if self._files is not None and self._messages.channels - self._channels_before >= MOST_CHANNELS:
            self._files.close()
        if self._files is not None and self._files.due and not self._closing:
            self._begin(self._files)

    def close(self) -> None:
        """Write what is left, and close the file. The socket ends with the process: `stop` waits for slow viewers."""
        until, idle = time.monotonic() + DRAIN_S, 0
        while idle < 2 and time.monotonic() < until:  # a look takes what the one before saw
            idle = 0 if self.step() else idle + 1
            time.sleep(READ_S if idle else 0)
        self._closing = True
        self.flush()
        if self._files is not None:
            self._files.close()

    def _begin(self, files: RecordingFiles) -> None:
        counter = self._kept.files
        self._kept.files = counter + 1
        self._kept.save()  # a successor takes the next one, however soon
        self._channels_before = self._messages.channels
        if files.begin(counter):
            for topic, kept in self._kept:
                self._log_own(topic, kept.number, msgspec.msgpack.decode(kept.head))

    def _log(self, topic: str, number: int, head: bytes, payload: memoryview) -> bool:
        """Log a record; False if it cannot be, and is lost."""
        try:
            self._log_messages(topic, head, payload)  # first: who reads the frame has its images already
            record = msgspec.msgpack.decode(head)
            self._log_own(topic, number, record)
        except Exception:  # no record may end the recording: the next process would find it again
            self._count_lost(1)
            return False
        self._kept.add(topic, number, head, record)
        return True

    def _log_messages(self, topic: str, head: bytes, payload: memoryview) -> None:
        if topic == TOPIC:
            with contextlib.suppress(Exception):  # what cannot be shown is recorded all the same
                self._messages.log(DECODER.decode(head), payload)

    def _log_own(self, topic: str, number: int, record: dict[str, Any]) -> None:
        self._channels[topic].log(msgspec.json.encode({NUMBER: number, **record}), log_time=record["time_ns"])

    def _count_lost(self, count: int) -> None:
        self._lost += count
        tell(RecorderNews("lost", "", lost=self._lost))

    def _serve(self) -> WebSocketServer | None:
        """Foxglove's socket. Recording goes on without it."""
        port = self._settings.live_port
        try:
            server = foxglove.start_server(
                name="edgeflow", host=LOOPBACK, port=port, context=self._context, message_backlog_size=BACKLOG
            )
        except (OSError, RuntimeError, OverflowError) as error:
            tell(RecorderNews("live", f"nothing is live: port {port} of {LOOPBACK}: {error}"))
            return None
        address = f"ws://{LOOPBACK}:{server.port}"
        tell(RecorderNews("live", f"live on {address}", address))
        return server


def _channel(topic: str, schema: bytes, context: foxglove.Context) -> foxglove.Channel:
    """The channel of a topic. Viewers want a schema of an object, and read what else it says."""
    name = "edgeflow." + ("SessionRecord" if topic == TOPIC else "PassRecord")
    fields = {NUMBER: {"type": "integer"}, "time_ns": {"type": "integer"}, "kind": {"type": "string"}}
    data = msgspec.json.encode({"type": "object", "properties": fields, **msgspec.json.decode(schema)})
    described = foxglove.Schema(name=name, encoding="jsonschema", data=data)
    return foxglove.Channel(topic, schema=described, message_encoding="json", context=context)


def main() -> int:
    """Record until the parent says or dies."""
    foxglove.set_log_level("CRITICAL")
    return run_reader(RecorderJob, RecorderProcess)


if __name__ == "__main__":
    sys.exit(main())
