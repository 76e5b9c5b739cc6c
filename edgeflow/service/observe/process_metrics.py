"""Metrics that control and its children keep: resources, event loops, rejected calls, and those of the chat front."""

from __future__ import annotations

import gc
import resource
import time
from collections.abc import Callable, Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

CONTROL_BUCKETS = (
    0.001, 0.002, 0.005, 0.01, 0.015, 0.02, 0.025, 0.033, 0.04, 0.05, 0.066, 0.08, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5,
)  # fmt: skip


class ProcessMetrics:
    """The common metrics of all processes. Garbage collection is measured between `open` and `close`."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        text = "Pages that the process read from disk."
        self.watch("major_page_faults", text, lambda: resource.getrusage(resource.RUSAGE_SELF).ru_majflt)
        self.loop_lag = self._histogram("event_loop_lag_seconds", "Lateness of the timer of the process's event loop.")
        self.gc_pause = self._histogram("gc_pause_seconds", "Duration of a garbage collection.", "generation")
        self.limit_rejections = self._counter("limit_rejections", "Requests rejected for a limit.", "limit")
        self.auth_failures = self._counter("auth_failures", "Calls rejected for their token.", "reason")
        self.client_refusals = self._counter(
            "client_refusals", "Requests of robots' own clients that got no action.", "front", "reason"
        )
        self._gc_started_s = 0.0

    def open(self) -> None:
        """Start measuring the interpreter's garbage collections."""
        gc.callbacks.append(self._on_gc)

    def close(self) -> None:
        """Stop measuring garbage collections."""
        if self._on_gc in gc.callbacks:
            gc.callbacks.remove(self._on_gc)

    def watch(self, name: str, text: str, count: Callable[[], float]) -> None:
        """Show a counter that is kept elsewhere."""
        self.registry.register(_Count(f"edgeflow_{name}", text, count))

    def text(self) -> bytes:
        """The metrics in the Prometheus text format."""
        return b"".join(self.text_by_family())

    def text_by_family(self) -> Iterator[bytes]:
        """The same text, one metric family at a time, so that a loop can write it in steps."""
        for family in self.registry.collect():
            yield generate_latest(_One(family))

    def _on_gc(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._gc_started_s = time.perf_counter()
        else:
            self.gc_pause.labels(str(info["generation"])).observe(time.perf_counter() - self._gc_started_s)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"edgeflow_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"edgeflow_{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, *labels: str, buckets: Sequence[float] = CONTROL_BUCKETS) -> Histogram:
        return Histogram(f"edgeflow_{name}", text, labels, registry=self.registry, buckets=buckets)


class _One:
    """A registry of one family."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterator[Metric]:
        yield self._family


class _Count(Collector):
    """A collector of one count."""

    def __init__(self, name: str, text: str, count: Callable[[], float]) -> None:
        self._name, self._text, self._count = name, text, count

    def collect(self) -> Iterator[CounterMetricFamily]:
        yield CounterMetricFamily(self._name, self._text, value=self._count())


class ChatMetrics(ProcessMetrics):
    """The metrics of a process that answers chat."""

    def __init__(self) -> None:
        super().__init__()
        self.running = self._gauge("chat_requests_running", "Chat requests that are being answered.")
        self.waiting = self._gauge("chat_requests_waiting", "Chat requests that wait for their turn.")
        self.rejected = self._counter(
            "chat_refused", "Chat requests rejected by a full or slow queue, or failed in the worker.", "reason"
        )
        self.first_token = self._histogram(
            "chat_time_to_first_token_seconds", "Time from a request to its first token."
        )
        self.token_gap = self._histogram("chat_inter_token_latency_seconds", "Time between the tokens of an answer.")
        self.tokens = self._counter("chat_tokens", "Tokens of prompts and answers.", "kind")
        self.draft_tokens = self._counter("chat_draft_tokens", "Draft tokens that were verified.", "kind")
        self.draft_tokens_accepted = self._counter("chat_draft_tokens_accepted", "Draft tokens found right.", "kind")
        self.draft_passes = self._counter(
            "chat_draft_passes",
            "Decode passes of requests with drafts: verified any or none.",
            "kind",
            "drafts",
        )
