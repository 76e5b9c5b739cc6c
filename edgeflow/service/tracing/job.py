"""The trace process from control's side: a ring of records of sessions, and the process that makes spans of them.

Control imports no OpenTelemetry. Records that find no room in the ring are lost, and so are spans that nobody takes.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import msgspec

from edgeflow_client.recording.records import TOPIC
from edgeflow_client.recording.ring import RecordRing
from edgeflow_client.recording.supervision import RecorderNews, RingProcess

PROCESS = "edgeflow.service.tracing.process"
RING_BYTES = 8 << 20  # of records without images: ten seconds of twenty robots
TRACES_PATH = "/v1/traces"


class TraceJob(msgspec.Struct, frozen=True, kw_only=True):
    """The work of the trace process."""

    endpoint: str
    """Address that takes spans, with its path."""
    sample: float
    """Share of frames without a trace context that are traced."""
    version: str
    """The version of edgeflow."""
    parent: int
    """Process id of its parent."""
    ring: int
    """Descriptor of the ring."""
    kept: tuple[int, int]
    """Descriptors of the kept records (`edgeflow_client.recording.kept`): the sessions that are open."""


class Tracer(RingProcess):
    """The ring and the process. endpoint: without path, as OTEL_EXPORTER_OTLP_ENDPOINT. tell: as in RingProcess.

    OSError without memory.
    """

    def __init__(self, endpoint: str, sample: float, version: str, tell: Callable[[RecorderNews], None]) -> None:
        ring = RecordRing.make(RING_BYTES)
        super().__init__(PROCESS, {TOPIC: ring}, tell, name="trace")
        self._give(
            TraceJob(
                endpoint=endpoint.rstrip("/") + TRACES_PATH,
                sample=sample,
                version=version,
                parent=os.getpid(),
                ring=ring.descriptor,
                kept=self._kept,
            )
        )
