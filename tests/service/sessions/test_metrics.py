"""Counts of a worker become counts of the service, over workers that come and go."""

from __future__ import annotations

from dataclasses import replace

from edgeflow.ipc.messages import Pong
from edgeflow.service.sessions.frames import StatusEvent
from edgeflow.service.sessions.observers import Metrics
from edgeflow_client.errors import InvalidArgument, ResourceExhausted
from edgeflow_client.reasons import Reason
from edgeflow_client.types import Disposition


def total(metrics: Metrics) -> float | None:
    return metrics.registry.get_sample_value("edgeflow_graph_eager_passes_total")


def pong(eager_passes: int) -> Pong:
    return Pong(
        nonce=1,
        passes=10,
        rows=10,
        full_passes=0,
        pass_ns=[],
        pass_prefills=[],
        pass_decodes=[],
        pass_whole=[],
        eager_passes=eager_passes,
    )


def test_passes_that_no_graph_held_are_counted_once():
    metrics = Metrics()
    for told, expected in ((0, 0), (3, 3), (3, 3), (5, 5), (1, 5), (2, 6)):  # a fresh worker says less
        metrics.pong(pong(told))
        assert total(metrics) == expected


def test_messages_above_a_limit_are_counted_and_rates_are_not():
    metrics = Metrics()
    wide = StatusEvent.rejected(1, InvalidArgument("is too long", field="frame", reason=Reason.INSTRUCTION_TOO_LONG))
    full = StatusEvent.rejected(2, ResourceExhausted("is full", reason=Reason.SESSIONS_TAKEN))
    fast = StatusEvent.rejected(3, ResourceExhausted("too many frames", reason=Reason.RATE_EXCEEDED))
    for event in (wide, full, fast, replace(wide, disposition=Disposition.DROPPED)):
        metrics.notified(1, event)
    counted = {
        reason: metrics.registry.get_sample_value("edgeflow_limit_rejections_total", {"limit": reason})
        for reason in (Reason.INSTRUCTION_TOO_LONG, Reason.SESSIONS_TAKEN, Reason.RATE_EXCEEDED)
    }
    assert list(counted.values()) == [1, 1, None]
