"""Counts of a worker become counts of the service, over workers that come and go."""

from __future__ import annotations

from edgeflow.ipc.messages import Pong
from edgeflow.service.sessions.observers import Metrics


def total(metrics: Metrics) -> float:
    (line,) = [
        line for line in metrics.text().decode().splitlines() if line.startswith("edgeflow_graph_eager_passes_t")
    ]
    return float(line.split()[-1])


def pong(eager_passes: int) -> Pong:
    return Pong(
        nonce=1,
        passes=10,
        rows=10,
        full_passes=0,
        pass_ns=[],
        pass_prefills=[],
        pass_decodes=[],
        eager_passes=eager_passes,
    )


def test_passes_that_no_graph_held_are_counted_once():
    metrics = Metrics()
    for told, expected in ((0, 0), (3, 3), (3, 3), (5, 5), (1, 5), (2, 6)):  # a fresh worker says less
        metrics.pong(pong(told))
        assert total(metrics) == expected
