"""The trace process: takes records of sessions out of their ring, and sends spans to a collector by OTLP over HTTP.

It runs as `python -m edgeflow.service.tracing.process DESCRIPTOR`, a file with a TraceJob as JSON, and ends as the
recorder does. The environment of the service is its own, so that OpenTelemetry's variables hold.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Sequence

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio

from edgeflow.service.tracing.job import TraceJob
from edgeflow.service.tracing.spans import SessionSpans
from edgeflow_client.recording.kept import KeptRecords
from edgeflow_client.recording.records import DECODER, TOPIC, AnySessionRecord, RecordedClosing, RecordedOpening
from edgeflow_client.recording.ring import RecordRing
from edgeflow_client.recording.supervision import READ_S, RecorderNews, run_reader, tell

MOST_WAITING = 16_384  # spans that are not sent: twenty robots for a few seconds
DRAIN_S = 1.0  # at the end, for records that are still in the ring
SHOWN = 200  # characters of a library's message
KINDS = {RecordedOpening: "opened", RecordedClosing: "closed"}


class CountingExporter(SpanExporter):
    """Sends spans by another exporter, and counts those that are gone: sent or lost."""

    def __init__(self, exporter: SpanExporter, endpoint: str) -> None:
        self._exporter = exporter
        self._endpoint = endpoint
        self._messages = LastMessage()
        self._failing = False
        self.gone = 0
        self.lost = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        try:
            result = self._exporter.export(spans)
        except Exception as error:  # no answer of a collector may end the sending
            self._messages.text, result = f"{type(error).__name__}: {error}", SpanExportResult.FAILURE
        self.gone += len(spans)
        failed = result is not SpanExportResult.SUCCESS
        self.lost += len(spans) * failed
        if failed and not self._failing:
            text = " ".join(self._messages.text.split())[:SHOWN]
            tell(RecorderNews("failing", f"{self._endpoint} takes no spans, which are lost: {text}"))
        elif self._failing and not failed:
            tell(RecorderNews("recovered", ""))
        self._failing = failed
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()


class LastMessage(logging.Handler):
    """Keeps OpenTelemetry's last message, which nobody would read on standard error."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ""
        logger = logging.getLogger("opentelemetry")
        logger.addHandler(self)
        logger.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        self.text = record.getMessage()


class BoundedProcessor(BatchSpanProcessor):
    """A queue of spans for an exporter, in batches; spans for which there is no room are counted."""

    def __init__(self, exporter: CountingExporter) -> None:
        super().__init__(exporter, max_queue_size=MOST_WAITING)
        self._counted = exporter
        self._taken = 0
        self.lost = 0

    def on_end(self, span: ReadableSpan) -> None:
        if self._taken - self._counted.gone >= MOST_WAITING:
            self.lost += 1
            return
        self._taken += 1
        super().on_end(span)


class TraceProcess:
    """Moves records from the ring to a collector."""

    def __init__(self, job: TraceJob) -> None:
        self._ring = RecordRing(job.ring)
        self._kept = KeptRecords(job.kept)
        self._exporter = CountingExporter(OTLPSpanExporter(endpoint=job.endpoint), job.endpoint)
        self._batches = BoundedProcessor(self._exporter)
        named = Resource({"service.name": "edgeflow", "service.version": job.version})
        self._provider = TracerProvider(
            sampler=ParentBasedTraceIdRatio(job.sample),
            resource=Resource.create().merge(named).merge(OTELResourceDetector().detect()),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(self._batches)
        self._spans = SessionSpans(self._provider.get_tracer("edgeflow", job.version))
        self._unread = self._told = 0
        for _, kept in self._kept:
            self._spans.take(DECODER.decode(kept.head))

    def step(self) -> int:
        """Take the records that had been written at the previous step; their number."""
        count, end = 0, 0
        for record in self._ring.look():
            count, end = count + 1, record.end
            try:
                found = DECODER.decode(record.head)
                self._spans.take(found)
                self._keep(found, record.number, record.head)
            except Exception:  # no record may end the tracing: the next process would find it again
                self._unread += 1
        if count:
            self._kept.save()
            self._ring.release(end)
        self._spans.pass_time(time.monotonic_ns() + self._ring.epoch_ns)
        lost = self._unread + self._exporter.lost + self._batches.lost
        if lost > self._told:
            self._told = lost
            tell(RecorderNews("lost", "", lost=lost))
        return count

    def close(self) -> None:
        """Send what is left, for as long as the parent waits."""
        until, idle = time.monotonic() + DRAIN_S, 0
        while idle < 2 and time.monotonic() < until:  # a look takes what the one before saw
            idle = 0 if self.step() else idle + 1
            time.sleep(READ_S if idle else 0)
        self._spans.finish(time.monotonic_ns() + self._ring.epoch_ns)
        self._provider.shutdown()
        self.step()

    def _keep(self, record: AnySessionRecord, number: int, head: bytes) -> None:
        """Keep the opening of a session until it is closed, for the next process."""
        kind = KINDS.get(type(record))
        if kind is not None:
            self._kept.add(TOPIC, number, head, {"kind": kind, "session": record.session})


def main() -> int:
    """Send traces until the parent says or dies."""
    return run_reader(TraceJob, TraceProcess)


if __name__ == "__main__":
    sys.exit(main())
