"""Major page faults: pages read from disk, of which a warm real-time process has none."""

from __future__ import annotations

import resource
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector


class PageFaults(Collector):
    """A collector of this process's major page faults since its start."""

    def collect(self) -> Iterator[CounterMetricFamily]:
        count = resource.getrusage(resource.RUSAGE_SELF).ru_majflt
        yield CounterMetricFamily("edgeflow_major_page_faults", "Pages read from disk by control", value=count)
