"""Tracing a service: the observer of sessions, the process that sends spans, and its news."""

from __future__ import annotations

import asyncio

from edgeflow.config.service import ServiceConfig
from edgeflow.service.host.preflight import check_trace
from edgeflow.service.observe.log import EventLog
from edgeflow.service.sessions.observers import Metrics
from edgeflow.service.sessions.recording import SessionRecorder
from edgeflow.service.tracing.job import Tracer
from edgeflow.version import __version__
from edgeflow_client.errors import StartError
from edgeflow_client.recording.recorder import wall_clock
from edgeflow_client.recording.records import TOPIC
from edgeflow_client.recording.supervision import RecorderNews

STOP_S = 2.0  # for what is not sent yet


class ServiceTracing:
    """Sends a trace of each frame to a collector. Its `observer` belongs to the sessions.

    Made before anything slow starts: DependencyError without the extra `trace`.
    """

    def __init__(self, config: ServiceConfig, metrics: Metrics, log: EventLog) -> None:
        check_trace(config.trace)
        self._config = config.trace
        self._metrics = metrics
        self._log = log
        self._restarts = 0
        self._failing = False
        try:
            self._tracer = Tracer(self._config.endpoint, self._config.sample, __version__, self._take)
        except OSError as error:
            raise StartError(f"trace: no memory for records that are not sent yet: {error.strerror}") from None
        ring = self._tracer.ring(TOPIC)
        self.observer = SessionRecorder(ring, model=config.alias, cameras="none", wall=wall_clock(ring))

    @property
    def summary(self) -> str:
        """Where traces go, and of how many frames, in one line."""
        share = "each frame" if self._config.sample == 1 else f"{100 * self._config.sample:g} % of the frames"
        return f"{share} to {self._config.endpoint}"

    def start(self) -> None:
        """Start the process that makes spans and sends them."""
        self._metrics.watch("trace_spans_lost", "Spans and records of spans that were lost", lambda: self._tracer.lost)
        self._metrics.watch("tracer_restarts", "Processes that send traces replaced", lambda: self._restarts)
        self._log.event("tracing", text=self.summary)
        self._tracer.start()

    async def stop(self) -> None:
        """Send what is left and end the process."""
        self.observer.write()
        await asyncio.to_thread(self._tracer.stop, STOP_S)

    def _take(self, news: RecorderNews) -> None:
        """Log and count a message of the process. Its thread calls this."""
        match news.kind:
            case "failing":
                if not self._failing:  # a successor of the process says it again
                    self._log.event("trace_failing", text=news.text)
                self._failing = True
            case "recovered":
                self._failing = False
                self._log.event("trace_recovered")
            case "lost" if not self._failing:  # what the collector does not take is counted in the metrics
                self._log.event("trace_lost", text=news.text)
            case "restarted":
                self._restarts += 1
                self._log.event("tracer_restarted", text=news.text)
