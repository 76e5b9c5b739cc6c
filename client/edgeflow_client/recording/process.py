"""The recorder process: takes records out of their rings and writes files and Foxglove's live socket.

It runs as `python -m edgeflow_client.recording.process`. Its standard input holds one line of JSON, a RecorderJob, and
ends when the recording does, or with its parent; then it writes what is left, and closes the file. Its standard output
has a line of JSON for each piece of news.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from typing import Any

import foxglove
import msgspec

from edgeflow_client.recording.files import RecordingFiles
from edgeflow_client.recording.foxglove_messages import SessionMessages
from edgeflow_client.recording.kept import KeptRecords
from edgeflow_client.recording.recorder import RecorderJob, RecorderNews
from edgeflow_client.recording.records import TOPIC
from edgeflow_client.recording.ring import RecordRing

LOOK_S = 0.02
FLUSH_S = 0.5
SCHEMA_NAMES = {TOPIC: "edgeflow.SessionRecord", "/edgeflow/passes": "edgeflow.PassRecord"}


class RecorderProcess:
    """What the process does with its rings."""

    def __init__(self, job: RecorderJob) -> None:
        self._settings = job.settings
        self._rings = {topic: RecordRing(descriptor) for topic, descriptor in job.rings.items()}
        self._kept = KeptRecords(job.kept)
        self._context = foxglove.Context()
        self._channels = {
            topic: foxglove.Channel(
                topic,
                schema=foxglove.Schema(
                    name=SCHEMA_NAMES.get(topic, "edgeflow.Record"), encoding="jsonschema", data=bytes(schema)
                ),
                message_encoding="json",
                context=self._context,
            )
            for topic, schema in job.schemas.items()
        }
        self._messages = SessionMessages(self._context, job.settings.cameras)
        for topic, kept in self._kept:
            if topic == TOPIC:
                self._messages.log(msgspec.msgpack.decode(kept.head), memoryview(b""))
        self._files = RecordingFiles(job.settings, job.run, self._context, tell) if job.settings.directory else None
        self._ends: dict[str, int] = {}
        self._unflushed = self._lost = 0
        self._flushed_at = time.monotonic()
        self._server = self._serve() if job.settings.live_port is not None else None

    def _serve(self) -> foxglove.WebSocketServer | None:
        try:
            server = foxglove.start_server(
                name="edgeflow", host="127.0.0.1", port=self._settings.live_port or 0, context=self._context
            )
        except (OSError, RuntimeError) as error:
            tell(RecorderNews("failing", f"no live socket on port {self._settings.live_port}: {error}"))
            return None
        tell(RecorderNews("live", f"live on ws://127.0.0.1:{server.port}", f"ws://127.0.0.1:{server.port}"))
        return server

    def step(self) -> int:
        """Take what was written up to the previous step; how many records."""
        if self._files is not None and self._files.due:
            self._begin()
        count = 0
        for topic, ring in self._rings.items():
            for record in ring.look():
                count += 1
                self._log(topic, record.number, record.head, record.payload)
                self._ends[topic] = record.end
        self._unflushed += count
        crowded = any(ring.waiting_bytes > ring.capacity // 4 for ring in self._rings.values())
        if crowded or time.monotonic() - self._flushed_at >= FLUSH_S:
            self.flush()
        return count

    def flush(self) -> None:
        """Write what was logged, and release it."""
        self._flushed_at = time.monotonic()
        if not self._ends:
            return
        if self._files is not None and not self._files.flush():
            self._lost += self._unflushed
            tell(RecorderNews("lost", f"{self._lost} records", lost=self._lost))
        self._kept.save()
        for topic, end in self._ends.items():
            self._rings[topic].release(end)
        self._ends.clear()
        self._unflushed = 0

    def close(self) -> None:
        """Write what is left and end."""
        while self.step():
            pass
        self.step()
        self.flush()
        if self._files is not None:
            self._files.close()
        if self._server is not None:
            self._server.stop()

    def _begin(self) -> None:
        assert self._files is not None
        if self._files.begin(self._kept.files):
            self._kept.files += 1
            self._kept.save()
            for topic, kept in self._kept:
                self._own(topic, kept.number, msgspec.msgpack.decode(kept.head))

    def _log(self, topic: str, number: int, head: bytes, payload: memoryview) -> None:
        record = msgspec.msgpack.decode(head)
        if topic == TOPIC:
            self._messages.log(record, payload)
        self._own(topic, number, record)
        self._kept.see(topic, number, head, record)

    def _own(self, topic: str, number: int, record: dict[str, Any]) -> None:
        self._channels[topic].log(msgspec.json.encode({"number": number, **record}), log_time=record["time_ns"])


def tell(news: RecorderNews) -> None:
    """Write news to standard output; lost if nobody reads them."""
    with contextlib.suppress(OSError):
        os.write(1, msgspec.json.encode(news) + b"\n")


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # its parent ends it
    os.set_blocking(1, False)
    os.nice(10)
    foxglove.set_log_level("CRITICAL")
    job = msgspec.json.decode(sys.stdin.buffer.readline(), type=RecorderJob)
    recorder = RecorderProcess(job)
    while os.getppid() == job.parent:
        recorder.step()
        if select.select([0], [], [], LOOK_S)[0]:
            break
    recorder.close()


if __name__ == "__main__":
    main()
