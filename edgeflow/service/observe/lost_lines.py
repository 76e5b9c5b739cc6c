"""Lines of the log that could not be written: a full disk, a closed pipe, a reader that stopped."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from edgeflow.service.observe.log import EventLog


class LostLines(Collector):
    """A collector of the lines that a log has lost."""

    def __init__(self, log: EventLog) -> None:
        self._log = log

    def collect(self) -> Iterator[CounterMetricFamily]:
        yield CounterMetricFamily("edgeflow_log_lines_lost", "Lines of the log that were lost", value=self._log.lost)
