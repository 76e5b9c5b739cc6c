"""Small rules: order, rate, rejections, the action gate, health, the outbox, the log."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest

from edgeflow.contract import Chunk, within_limits
from edgeflow.scheduler.turns import TokenBucket
from edgeflow.service.observe.health import Health, HealthState
from edgeflow.service.observe.log import EventLog, LogAnnouncer
from edgeflow.service.sessions.frames import NoticeEvent, StatusEvent
from edgeflow.service.sessions.in_flight import Outbox
from edgeflow.service.sessions.rates import RollingCount
from edgeflow.service.sessions.robot_clock import SEQ_WINDOW, TOLERANCE_NS, FrameOrder
from edgeflow.service.status import ServiceStatus
from edgeflow_client.clock import ManualClock
from edgeflow_client.errors import OutOfRange
from edgeflow_client.types import Disposition
from tests.service.scripted import SCHEMA

MS = 1_000_000
SECOND = 1000 * MS
FINE = (0.0, 0.5, 1.0)


@pytest.mark.parametrize(
    ("seq", "stamp_ns", "reason"),
    [
        (5, 100, "SEQ_DUPLICATE"),
        (4, 100, "SEQ_OLD"),
        (5 + SEQ_WINDOW + 1, 100, "SEQ_GAP"),
        (6, 99, "STAMP_OLD"),
        (6, 100 + TOLERANCE_NS + 1, "STAMP_FUTURE"),
    ],
)
def test_frames_out_of_order(seq: int, stamp_ns: int, reason: str):
    order = FrameOrder()
    for number in (3, 4, 5):
        order.admit(number, 100, now_ns=1_000)
    with pytest.raises(OutOfRange) as caught:
        order.admit(seq, stamp_ns, now_ns=1_000)
    assert caught.value.reason == reason
    order.admit(6, 100, now_ns=1_001)


def test_the_robot_s_clock_may_have_any_offset():
    order = FrameOrder()
    for step in range(1, 50):
        order.admit(step, 10**18 + step * 100 * MS, now_ns=step * 100 * MS)
    assert order.clock.delay_ns(10**18 + 50 * 100 * MS, 50 * 100 * MS + 7) == 7


def test_a_burst_may_come_at_once_then_the_rate_holds():
    bucket = TokenBucket(100 * MS, 3, now_ns=0)
    assert [bucket.take(0) for _ in range(5)] == [True] * 3 + [False] * 2
    assert bucket.ready_at_ns(40 * MS) == 100 * MS
    assert not bucket.take(99 * MS) and bucket.take(100 * MS) and not bucket.take(101 * MS)
    assert bucket.ready_at_ns(SECOND) <= SECOND and [bucket.take(SECOND) for _ in range(4)] == [True] * 3 + [False]


def test_rejections_are_forgotten_after_ten_seconds():
    count = RollingCount(2)
    assert [count.exceeded(now) for now in (0, 1, 2)] == [False, False, True]
    assert not count.exceeded(11 * SECOND)


@pytest.mark.parametrize(
    ("values", "good"),
    [
        ([0.0, 0.0, 0.0], True),
        ([1.0 + 1e-9, -1.0, 1.0], True),
        ([1.001, 0.0, 0.0], False),
        ([0.0, 0.0, -0.001], False),
        ([float("nan"), 0.0, 0.0], False),
        ([0.0, float("-inf"), 0.0], False),
        ([0.0, 0.0], False),
    ],
)
def test_the_action_limits(values: list[float], good: bool):
    assert within_limits(Chunk(tuple(values)), SCHEMA) is good
    whole = replace(SCHEMA, horizon=3, step_ms=20.0)
    if len(values) == len(FINE):
        assert within_limits(Chunk((*FINE, *values, *FINE), 3, 20.0), whole) is good
    assert not within_limits(Chunk(tuple(values)), whole)


@pytest.mark.parametrize("chunk", [Chunk(FINE * 2, 2, 20.0), Chunk(FINE * 3, 3, 10.0), Chunk(FINE * 3, 1), Chunk(FINE)])
def test_a_chunk_of_another_shape_or_step_fails_the_action_limits(chunk: Chunk):
    whole = replace(SCHEMA, horizon=3, step_ms=20.0)
    assert within_limits(Chunk(FINE * 3, 3, 20.0), whole) and not within_limits(chunk, whole)


def test_health_moves_only_along_its_arrows():
    health = Health()
    heard: list[HealthState] = []
    health.listen(heard.append)
    assert not health.move(HealthState.READY) and not health.ready
    for state in (HealthState.WARMING, HealthState.READY, HealthState.DEGRADED, HealthState.READY, HealthState.FAULT):
        assert health.move(state)
    assert not health.live
    assert not health.move(HealthState.READY)
    assert health.move(HealthState.DRAINING) and health.move(HealthState.STOPPED)
    assert not health.move(HealthState.FAULT)
    assert heard[0] is HealthState.STARTING and heard[-1] is HealthState.STOPPED


def superseded(seq: int) -> StatusEvent:
    return StatusEvent(seq=seq, disposition=Disposition.SUPERSEDED)


def test_frames_superseded_one_after_another_are_one_status():
    outbox = Outbox()
    for seq in (1, 2, 3, 5):
        outbox.note(superseded(seq))
    outbox.note(NoticeEvent("epoch", 2))
    outbox.note(superseded(6))
    ranges = [(e.seq, e.last_seq, e.frames) for e in outbox.take() if isinstance(e, StatusEvent)]
    assert ranges == [(1, 3, 3), (5, 0, 1), (6, 0, 1)]
    assert not outbox


def test_the_log_is_json_limited_and_counts_what_it_left_out():
    clock, stream = ManualClock(), io.StringIO()
    log = EventLog(clock, stream, wall=lambda: 1.0)
    for _ in range(15):
        log.event("hold", reason="silent")
    clock.advance_ns(SECOND)
    log.event("hold", reason="silent")
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert len(lines) == 11 and lines[0] == {"time": 1.0, "level": "info", "event": "hold", "reason": "silent"}
    assert lines[-1]["muted"] == 5


def test_a_terminal_gets_the_log_in_words():
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    log = EventLog(ManualClock(), stream, wall=lambda: 1.5)
    log.event("worker_lost", cause="hung", text="a \x1b[31mred\nline", state=HealthState.READY)
    assert stream.getvalue().removeprefix("\r\x1b[K") == (
        '1970-01-01T00:00:01.500+00:00 warning worker_lost cause=hung text="a \\u001b[31mred\\nline" state=ready\n'
    )


def test_a_file_gets_every_phase_once():
    stream = io.StringIO()
    announce = LogAnnouncer(EventLog(ManualClock(), stream, wall=lambda: 1.0))
    for status in (
        ServiceStatus(phase=HealthState.WARMING, step="a", done=1, total=2),
        ServiceStatus(phase=HealthState.WARMING, step="b", done=2, total=2),
        ServiceStatus(phase=HealthState.READY, grpc_port=5, forecasts=(("serial", 7.5, 134.0),)),
    ):
        announce(status)
    told = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["phase"] for line in told] == ["warming", "ready"] and "step" not in told[0]
    assert (told[1]["grpc_port"], told[1]["forecasts"]) == (5, [["serial", 7.5, 134.0]])


def test_an_incident_tells_where_but_not_what():
    stream = io.StringIO()
    log = EventLog(ManualClock(), stream)
    try:
        raise ValueError("the task text")
    except ValueError as error:
        number = log.incident("Stream", error)
    line = json.loads(stream.getvalue())
    assert line["incident"] == number and line["error"] == "ValueError"
    assert "test_rules.py" in line["stack"][-1] and "task text" not in stream.getvalue()
