"""Counts of a worker become counts of the service, over workers that come and go."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

from edgeflow.ipc.messages import Pong
from edgeflow.service.observe.process_metrics import ChatMetrics
from edgeflow.service.sessions.frames import ActionEvent, StatusEvent
from edgeflow.service.sessions.observers import Metrics
from edgeflow_client.clock import ManualClock
from edgeflow_client.errors import InvalidArgument, ResourceExhausted
from edgeflow_client.reasons import Reason
from edgeflow_client.types import Command, Disposition


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


def test_the_time_of_a_hold_is_counted_at_its_end_and_at_each_scrape():
    clock = ManualClock()
    metrics = Metrics(clock)
    metrics.opened(SimpleNamespace(number=1, request=SimpleNamespace(control_period_ns=50_000_000)))

    def held() -> dict[str, tuple[float | None, float | None]]:
        b"".join(metrics.text_by_family())
        value = metrics.registry.get_sample_value
        names = ("edgeflow_held_seconds_total", "edgeflow_held_ticks_total")
        return {str(each): tuple(value(name, {"reason": each}) for name in names) for each in reasons}

    def command(command: Command, reason: Reason) -> None:
        metrics.notified(1, ActionEvent(epoch=0, command=command, reason=reason, valid_for_ms=0))

    reasons = (Reason.INGRESS_SILENT, Reason.WORKER_LOST)
    command(Command.HOLD, Reason.INGRESS_SILENT)
    clock.advance_ns(2_000_000_000)
    assert held() == {"INGRESS_SILENT": (2.0, 40.0), "WORKER_LOST": (0.0, 0.0)}
    clock.advance_ns(1_000_000_000)
    command(Command.HOLD, Reason.WORKER_LOST)  # one reason after the other
    clock.advance_ns(500_000_000)
    command(Command.STOP, Reason.FAULT)
    clock.advance_ns(9_000_000_000)
    assert held() == {"INGRESS_SILENT": (3.0, 60.0), "WORKER_LOST": (0.5, 10.0)}
    command(Command.HOLD, Reason.WORKER_LOST)
    clock.advance_ns(500_000_000)
    metrics.closed(SimpleNamespace(number=1, end=SimpleNamespace(reason=Reason.CLIENT_CLOSED)))
    command(Command.HOLD, Reason.WORKER_LOST)  # of a session that has ended
    clock.advance_ns(500_000_000)
    assert held() == {"INGRESS_SILENT": (3.0, 60.0), "WORKER_LOST": (1.0, 20.0)}


def test_each_metric_is_explained_by_a_sentence():
    families = [family for each in (Metrics(), ChatMetrics()) for family in each.registry.collect()]
    assert [family.name for family in families if not family.documentation.endswith(".")] == []
