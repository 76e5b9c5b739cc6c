"""Every metric that a service shows stands on docs/operate/metrics.md, with its type and labels."""

from __future__ import annotations

import asyncio
import io
import re
from collections.abc import Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Info
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.openmetrics.exposition import generate_latest

from edgeflow.service.gateway.events import GatewayMetrics
from edgeflow.service.observe.board import BoardMonitor
from edgeflow.service.observe.log import EventLog
from edgeflow.service.observe.process_metrics import ChatMetrics, ProcessMetrics
from edgeflow.service.sessions.observers import Metrics
from edgeflow_client.clock import ManualClock
from tests.jetson_trees import ORIN, write_tree

ROOT = Path(__file__).parents[3]
WATCHED = re.compile(r"""\.watch\(\s*"(\w+)", """)  # counts that are kept elsewhere
ROW = re.compile(r"^\| `(edgeflow_\w+)` \| (\w+) \| ([^|]*)\| \S", re.MULTILINE)


def exported() -> Iterator[tuple[str, str, frozenset[str]]]:
    """Name, type and labels of every metric; `process` is the label of those that several processes keep."""
    shared = set(vars(ProcessMetrics()))
    for metrics in (Metrics(), ChatMetrics(), GatewayMetrics()):
        for attribute, metric in vars(metrics).items():
            if isinstance(metric, MetricWrapperBase):
                (family,) = metric.describe()
                name = family.name + ("_total" if isinstance(metric, Counter) else "")
                labels = {*metric._labelnames, *(["process"] if attribute in shared else [])}
                if isinstance(metric, Info):
                    yield f"{name}_info", "gauge", frozenset({"version", "model", "model_sha"})
                else:
                    yield name, family.type, frozenset(labels)


def of_a_board(root: Path) -> Iterator[tuple[str, str, frozenset[str]]]:
    """The same of the metrics of a Jetson."""
    board = BoardMonitor(CollectorRegistry(), EventLog(ManualClock(), io.StringIO()), write_tree(root, ORIN))
    assert asyncio.run(board.found())
    for family in board.collect():
        name = family.name + ("_total" if family.type == "counter" else "")
        yield name, family.type, frozenset(label for sample in family.samples for label in sample.labels)


def watched() -> set[str]:
    """Names of the counters that `watch` shows."""
    text = "".join(path.read_text() for path in (ROOT / "edgeflow/service").rglob("*.py"))
    return {f"edgeflow_{name}_total" for name in WATCHED.findall(text)}


def test_the_page_has_every_metric_and_no_other(tmp_path: Path):
    page = ROW.findall((ROOT / "docs/operate/metrics.md").read_text())
    shown = {(name, kind, frozenset(re.findall(r"`(\w+)`", labels))) for name, kind, labels in page}
    assert len(shown) == len(page)
    plain = {each for each in shown if each[0] not in watched()}
    assert plain == {*exported(), *of_a_board(tmp_path)}
    assert shown - plain == {
        ("edgeflow_major_page_faults_total", "counter", frozenset({"process"})),
        ("edgeflow_log_lines_lost_total", "counter", frozenset()),
        ("edgeflow_recording_records_lost_total", "counter", frozenset()),
        ("edgeflow_trace_spans_lost_total", "counter", frozenset()),
        ("edgeflow_tracer_restarts_total", "counter", frozenset()),
    }
    assert {name for name, *_ in shown - plain} == watched()


def test_the_build_has_the_labels_that_the_page_names():
    metrics = Metrics()
    metrics.build.info({"version": "1", "model": "m", "model_sha": "0"})
    assert b'edgeflow_build_info{model="m",model_sha="0",version="1"} 1' in generate_latest(metrics.registry)
