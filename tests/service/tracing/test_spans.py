"""Spans of records: trace contexts, what a robot executes, HOLD, frames without an answer."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio
from opentelemetry.trace import StatusCode

from edgeflow.service.observation.requests import MOST_TRACE, trace_context
from edgeflow.service.tracing.spans import GIVEN_UP_NS, LONGEST_HOLD_NS, SessionSpans
from edgeflow_client.recording.records import (
    RecordedAnswer,
    RecordedClosing,
    RecordedHold,
    RecordedNotice,
    RecordedObservation,
    RecordedOpening,
    RecordedOutcome,
    RecordedPass,
)
from edgeflow_client.trajectory import Arrived, Playing
from edgeflow_client.types import Command, Disposition

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
CONTEXT = f"00-{TRACE}-{SPAN}-01"
MS = 1_000_000


class MadeSpans:
    """Spans of one session, which is opened at 0 ms; times are milliseconds."""

    def __init__(self, sample: float = 1.0, **opening: str) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider(sampler=ParentBasedTraceIdRatio(sample), shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.made = SessionSpans(provider.get_tracer("test"))
        self.made.take(RecordedOpening(session=1, time_ns=0, source="service", cameras=(), **opening))

    def frame(self, seq: int, at: int, **fields) -> None:
        self.made.take(RecordedObservation(session=1, time_ns=at * MS, seq=seq, stamp_ns=0, **fields))

    def answer(self, seq: int, at: int, took: int, **fields) -> None:
        self.made.take(RecordedAnswer(session=1, time_ns=at * MS, seq=seq, server_ns=took * MS, **fields))

    def outcome(self, seq: int, at: int, disposition: Disposition, **fields) -> None:
        self.made.take(RecordedOutcome(session=1, time_ns=at * MS, seq=seq, disposition=disposition, **fields))

    def hold(self, at: int, reason: str, command: Command = Command.HOLD) -> None:
        self.made.take(RecordedHold(session=1, time_ns=at * MS, command=command, reason=reason))

    def ended(self, name: str = "") -> list[ReadableSpan]:
        return [each for each in self._exporter.get_finished_spans() if name in ("", each.name)]

    def times(self, name: str) -> list[tuple[int, int]]:
        return [(_ms(each.start_time), _ms(each.end_time)) for each in self.ended(name)]


def _ms(time_ns: int | None) -> int:
    assert time_ns is not None
    return time_ns // MS


@pytest.mark.parametrize(
    ("sent", "taken"),
    [
        (CONTEXT, True),
        (f" {CONTEXT} ", True),
        (f"cc-{TRACE}-{SPAN}-01-what-comes-later", True),
        (f"{CONTEXT}-more", False),  # this version ends there
        (f"cc-{TRACE}-{SPAN}-01.what", False),
        (f"ff-{TRACE}-{SPAN}-01", False),
        (CONTEXT.upper(), False),
        (f"00-{'0' * 32}-{SPAN}-01", False),
        (f"00-{TRACE}-{'0' * 16}-01", False),
        (CONTEXT[:-1], False),
        ("", False),
        ("\ud800", False),
        (CONTEXT + "-" * MOST_TRACE, False),
    ],
)
def test_a_malformed_trace_context_is_ignored(sent: str, taken: bool):
    found = trace_context([("traceparent", sent), ("tracestate", "a=1"), ("tracestate", "b=2")])
    spans = MadeSpans(**dict(zip(("traceparent", "tracestate"), found, strict=False)))
    spans.answer(1, at=20, took=10)
    (frame,) = spans.ended("frame")
    assert (frame.parent is not None and f"{frame.parent.trace_id:032x}" == TRACE) == taken
    assert frame.context is not None and frame.context.trace_state.to_header() == ("a=1,b=2" if taken else "")


def test_a_trace_context_that_is_given_twice_is_ignored():
    assert trace_context([("traceparent", CONTEXT), ("traceparent", CONTEXT)]) == ()
    assert trace_context([("tracestate", "a=1"), ("traceparent-bin", b"x")]) == ()
    assert trace_context([("traceparent", CONTEXT), ("tracestate", "é")]) == (CONTEXT,)


@pytest.mark.parametrize(("sample", "flags", "kept"), [(0.0, "01", True), (1.0, "00", False), (0.0, "", False)])
def test_the_robot_s_sampled_flag_counts_and_without_one_the_share(sample: float, flags: str, kept: bool):
    spans = MadeSpans(sample, traceparent=f"{CONTEXT[:-2]}{flags}" if flags else "")
    spans.frame(1, at=0)
    spans.answer(1, at=20, took=10)
    spans.frame(2, at=30, arrived=Arrived(1, 15 * MS))
    spans.hold(40, "WORKER_LOST")
    spans.made.finish(50 * MS)
    assert {each.name for each in spans.ended()} == ({"receive", "frame", "executed", "hold"} if kept else set())


def test_stages_follow_each_other_inside_their_frame_whatever_the_records_say():
    spans = MadeSpans()
    spans.frame(1, at=100, waited_ns=5 * MS)
    passes = (RecordedPass(20 * MS, 30 * MS, 1, 1, 2), RecordedPass(10 * MS, 90 * MS))
    spans.answer(1, at=150, took=40, decoding_ns=3 * MS, decode_ns=4 * MS, spans=passes, passes=2)
    assert spans.times("frame") == [(95, 135)]
    assert [spans.times(name) for name in ("receive", "decode", "queue", "answer")] == [
        [(95, 98)],
        [(98, 102)],
        [(102, 115)],
        [(135, 135)],
    ]
    assert spans.times("pass") == [(115, 125), (125, 135)]


def test_an_answer_is_executed_from_its_arrival_until_the_next_one_is():
    spans = MadeSpans()
    for seq, began in ((1, 0), (2, 100)):
        spans.frame(seq, at=began, arrived=Arrived(1, 30 * MS) if seq > 1 else None)
        spans.answer(seq, at=began + 21, took=20)
    spans.frame(3, at=150, arrived=Arrived(2, 25 * MS))
    assert spans.times("executed") == [(30, 125)]
    spans.hold(160, "WORKER_LOST")
    assert spans.times("executed") == [(30, 125), (125, 160)]
    (frame, _), (done, _) = spans.ended("frame"), spans.ended("executed")
    assert done.parent is not None and frame.context is not None and done.parent.span_id == frame.context.span_id


def test_of_a_chunk_the_row_that_is_played_counts_and_not_its_arrival():
    spans = MadeSpans()
    spans.frame(1, at=0)
    spans.answer(1, at=20, took=20, horizon=8)
    spans.frame(2, at=50, arrived=Arrived(1, 25 * MS))
    spans.frame(3, at=100, arrived=Arrived(1, 25 * MS), playing=Playing(1, 3))
    spans.frame(4, at=150, arrived=Arrived(1, 25 * MS), resting=True)
    assert spans.times("executed") == [(25, 150)]


def test_an_answer_of_which_nothing_is_reported_is_given_up():
    spans = MadeSpans()
    spans.answer(1, at=20, took=20)
    spans.made.pass_time(21 * MS + GIVEN_UP_NS)
    spans.frame(2, at=2100, arrived=Arrived(1, 2050 * MS))
    spans.answer(2, at=2120, took=20)
    spans.frame(3, at=2150, arrived=Arrived(2, 20 * MS))
    spans.made.pass_time(2151 * MS + GIVEN_UP_NS)
    assert spans.times("executed") == [(2120, 2150)]


@pytest.mark.parametrize(
    ("disposition", "code"),
    [
        (Disposition.DROPPED, StatusCode.ERROR),
        (Disposition.REJECTED, StatusCode.ERROR),
        (Disposition.SUPERSEDED, StatusCode.UNSET),
    ],
)
def test_frames_without_an_answer_say_why(disposition: Disposition, code: StatusCode):
    spans = MadeSpans()
    spans.frame(1, at=0)
    spans.frame(2, at=10)
    spans.made.take(RecordedNotice(session=1, time_ns=15 * MS, notice="worker_lost", text="x" * 999))
    spans.outcome(1, 20, disposition, last_seq=2, reason="WHY", text="because")
    spans.outcome(9, 30, disposition, reason="WHY", text="because")
    assert spans.times("frame") == [(0, 20), (10, 20), (30, 30)]
    first, second, _ = spans.ended("frame")
    assert first.status.status_code is code and first.status.description == ("WHY: because" if code.value else None)
    assert first.attributes is not None and first.attributes["edgeflow.reason"] == "WHY"
    ((notice,), none) = first.events, second.events
    assert notice.attributes is not None and notice.attributes["edgeflow.notice"] == "worker_lost" and not none
    assert len(str(notice.attributes["edgeflow.text"])) == 200 and notice.timestamp == 15 * MS


def _answered(spans: MadeSpans) -> None:
    spans.answer(2, at=80, took=10)


def _closed(spans: MadeSpans) -> None:
    spans.made.take(RecordedClosing(session=1, time_ns=80 * MS))


def _stopped(spans: MadeSpans) -> None:
    spans.hold(80, "FAULT", Command.STOP)


def _long(spans: MadeSpans) -> None:
    spans.made.pass_time(40 * MS + LONGEST_HOLD_NS + 1)


@pytest.mark.parametrize(
    ("then", "end"), [(_answered, 80), (_closed, 80), (_stopped, 80), (_long, 40 + LONGEST_HOLD_NS // MS)]
)
def test_hold_lasts_until_the_next_answer_and_names_the_frame_before(then: Callable[[MadeSpans], None], end: int):
    spans = MadeSpans(traceparent=CONTEXT)
    spans.answer(1, at=30, took=10)
    spans.hold(40, "INGRESS_SILENT")
    then(spans)
    ((hold,), frame) = spans.ended("hold"), spans.ended("frame")[0]
    assert spans.times("hold") == [(40, end)] and hold.status.status_code is StatusCode.ERROR
    assert hold.attributes is not None and hold.attributes["edgeflow.reason"] == "INGRESS_SILENT"
    assert [each.context for each in hold.links] == [frame.context]
