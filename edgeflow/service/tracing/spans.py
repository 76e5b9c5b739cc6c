"""Spans of records: a span per frame with the stages that it went through, and one per HOLD and STOP.

Times are those of the records. A frame's span begins when the service receives it and ends when its answer is sent, or
when it leaves without one. Its child `executed` comes after it: it begins when the robot executes the answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from edgeflow_client.recording.records import (
    AnySessionRecord,
    RecordedAnswer,
    RecordedClosing,
    RecordedHold,
    RecordedNotice,
    RecordedObservation,
    RecordedOpening,
    RecordedOutcome,
)
from edgeflow_client.types import Disposition

GIVEN_UP_NS = 2_000_000_000  # without a report of the robot that it executes an answer
LONGEST_HOLD_NS = 60_000_000_000  # of a span, so that a robot that holds for long is seen
MOST_FRAMES = 256  # of a session, in flight or answered
MOST_NOTICES = 16  # of a frame
SHOWN = 200  # characters of a text
Attributes = Mapping[str, str | int | float]
_PROPAGATOR = TraceContextTextMapPropagator()


@dataclass(slots=True)
class _Answered:
    """A frame whose answer was sent."""

    context: Context
    """With its span."""
    start_ns: int
    end_ns: int
    horizon: int


@dataclass(slots=True)
class _Executed:
    """The answer that a robot executes."""

    seq: int
    span: Span | None
    """None for a frame that is not known, or not any more."""
    start_ns: int
    reported_ns: int


@dataclass(slots=True)
class _Held:
    span: Span
    start_ns: int


@dataclass(slots=True, kw_only=True)
class _TracedSession:
    """A session that is open."""

    context: Context
    """With the span that its robot is part of, if it sent one."""
    attributes: Attributes
    frames: dict[int, RecordedObservation] = field(default_factory=dict)
    answered: dict[int, _Answered] = field(default_factory=dict)
    executed: _Executed | None = None
    held: _Held | None = None
    notices: list[RecordedNotice] = field(default_factory=list)
    """Those since the last frame that left."""
    last: SpanContext | None = None
    """The span of the last frame that left."""


class SessionSpans:
    """Makes spans of the records of all sessions, which come in order."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._sessions: dict[int, _TracedSession] = {}

    def take(self, record: AnySessionRecord) -> None:
        """Take the next record."""
        if isinstance(record, RecordedOpening):
            self._sessions[record.session] = _opened(record)
            return
        session = self._sessions.get(record.session)
        if session is None:
            return
        match record:
            case RecordedObservation():
                _bound(session.frames)
                session.frames[record.seq] = record
                self._execute(session, record)
            case RecordedAnswer():
                self._answer(session, record)
            case RecordedOutcome():
                self._leave(session, record)
            case RecordedHold():
                self._hold(session, record)
            case RecordedNotice():
                session.notices = [*session.notices, record][-MOST_NOTICES:]
            case RecordedClosing():
                self._end(self._sessions.pop(record.session), record.time_ns)

    def pass_time(self, now_ns: int) -> None:
        """End what no record ends. now_ns: as in records."""
        for session in self._sessions.values():
            executed, held = session.executed, session.held
            if executed is not None and now_ns - executed.reported_ns > GIVEN_UP_NS:
                _stop_executing(session, executed.reported_ns)
            if held is not None and now_ns - held.start_ns > LONGEST_HOLD_NS:
                _stop_holding(session, now_ns)
            while session.answered and now_ns - next(iter(session.answered.values())).end_ns > GIVEN_UP_NS:
                del session.answered[next(iter(session.answered))]

    def finish(self, now_ns: int) -> None:
        """End every span."""
        for session in self._sessions.values():
            self._end(session, now_ns)

    def _end(self, session: _TracedSession, now_ns: int) -> None:
        _stop_executing(session, now_ns)
        _stop_holding(session, now_ns)

    def _answer(self, session: _TracedSession, record: RecordedAnswer) -> None:
        frame = session.frames.pop(record.seq, None)
        start_ns = record.time_ns - record.server_ns if frame is None else _received_ns(frame)
        end_ns = start_ns + record.server_ns
        attributes: Attributes = {
            "edgeflow.seq": record.seq,
            "edgeflow.epoch": record.epoch,
            "edgeflow.disposition": Disposition.ACTED.value,
            "edgeflow.latency_ms": record.age_ns / 1e6,
            "edgeflow.passes": record.passes,
        }
        context = self._frame(session, start_ns, end_ns, attributes)
        if context is not None:
            self._stages(context, record, start_ns, end_ns)
            _bound(session.answered)
            session.answered[record.seq] = _Answered(context, start_ns, end_ns, record.horizon)
        _stop_holding(session, end_ns)

    def _stages(self, context: Context, record: RecordedAnswer, start_ns: int, end_ns: int) -> None:
        """The children of an answered frame, one after the other. Pauses between passes are not of a stage."""
        at_ns = start_ns

        def stage(name: str, until_ns: int, attributes: Attributes | None = None) -> None:
            nonlocal at_ns
            until_ns = min(max(start_ns + until_ns, at_ns), end_ns)
            self._tracer.start_span(name, context, start_time=at_ns, attributes=attributes).end(until_ns)
            at_ns = until_ns

        decoded_ns = record.decoding_ns + record.decode_ns
        stage("receive", record.decoding_ns)
        if record.decode_ns:
            stage("decode", decoded_ns)
        if not record.spans:
            return
        stage("queue", record.spans[0].start_ns)
        for number, each in enumerate(record.spans, 1):
            at_ns = min(max(at_ns, start_ns + each.start_ns), end_ns)
            attributes = {
                "edgeflow.pass.number": number,
                "edgeflow.pass.steps": each.steps,
                "edgeflow.pass.prefills": each.prefills,
                "edgeflow.pass.decodes": each.decodes,
            }
            stage("pass", each.end_ns, attributes)
        stage("answer", record.server_ns)

    def _leave(self, session: _TracedSession, record: RecordedOutcome) -> None:
        """Frames leave without an answer."""
        last = max(record.seq, record.last_seq)
        failed = record.disposition in (Disposition.DROPPED, Disposition.REJECTED)
        status = Status(StatusCode.ERROR, f"{record.reason}: {record.text}"[:SHOWN]) if failed else None
        known = [seq for seq in session.frames if record.seq <= seq <= last]
        for seq in known or [record.seq]:
            frame = session.frames.pop(seq, None)
            attributes: Attributes = {
                "edgeflow.seq": seq,
                **({"edgeflow.epoch": frame.epoch} if frame is not None else {}),
                "edgeflow.disposition": record.disposition.value,
                "edgeflow.reason": record.reason,
            }
            start_ns = record.time_ns if frame is None else _received_ns(frame)
            self._frame(session, start_ns, record.time_ns, attributes, status)

    def _frame(
        self, session: _TracedSession, start_ns: int, end_ns: int, attributes: Attributes, status: Status | None = None
    ) -> Context | None:
        """The span of a frame, with the notices since the last one; the context of its children, None where it is not
        sampled.
        """
        span = self._tracer.start_span(
            "frame",
            session.context,
            SpanKind.SERVER,
            attributes={**session.attributes, **attributes},
            start_time=start_ns,
        )
        for notice in session.notices:
            about = {"edgeflow.notice": notice.notice, "edgeflow.text": notice.text[:SHOWN]}
            span.add_event("notice", about, timestamp=notice.time_ns)
        session.notices = []
        if status is not None:
            span.set_status(status)
        span.end(end_ns)
        session.last = span.get_span_context()
        return set_span_in_context(span, session.context) if session.last.trace_flags.sampled else None

    def _execute(self, session: _TracedSession, record: RecordedObservation) -> None:
        """The robot reports what it executes."""
        seq, arrived, executed = _executed(session, record), record.arrived, session.executed
        if executed is not None and executed.seq == seq:
            executed.reported_ns = record.time_ns
            return
        answered, began_ns = session.answered.pop(seq, None), record.time_ns
        if answered is not None and arrived is not None and arrived.seq == seq:
            began_ns = min(max(answered.start_ns + arrived.age_ns, answered.end_ns), began_ns)
        _stop_executing(session, began_ns)
        if seq:
            span = None
            if answered is not None:
                span = self._tracer.start_span("executed", answered.context, start_time=began_ns)
            session.executed = _Executed(seq, span, began_ns, record.time_ns)

    def _hold(self, session: _TracedSession, record: RecordedHold) -> None:
        """HOLD or STOP: a span until the next answer, and the end of what the robot executes."""
        _stop_executing(session, record.time_ns)
        _stop_holding(session, record.time_ns)
        links = [Link(session.last)] if session.last is not None else []
        attributes = {**session.attributes, "edgeflow.epoch": record.epoch, "edgeflow.reason": record.reason}
        span = self._tracer.start_span(
            record.command.value, session.context, attributes=attributes, links=links, start_time=record.time_ns
        )
        span.set_status(Status(StatusCode.ERROR, record.reason))
        session.held = _Held(span, record.time_ns)


def _opened(record: RecordedOpening) -> _TracedSession:
    headers = {"traceparent": record.traceparent, "tracestate": record.tracestate}
    return _TracedSession(
        context=_PROPAGATOR.extract({name: value for name, value in headers.items() if value}, Context()),
        attributes={
            "edgeflow.session": record.session,
            "edgeflow.front": record.front or "grpc",
            "edgeflow.model": record.model,
            "edgeflow.mode": record.served_mode.value if record.served_mode is not None else "",
        },
    )


def _received_ns(frame: RecordedObservation) -> int:
    return frame.time_ns - frame.waited_ns


def _executed(session: _TracedSession, record: RecordedObservation) -> int:
    """The frame whose answer a robot executed at this capture; 0 = none, or it does not report any."""
    if record.playing is not None:
        return record.playing.seq
    if record.arrived is None or record.resting:
        return 0
    seq, executed = record.arrived.seq, session.executed
    if executed is not None and executed.seq == seq:
        return seq
    return seq if seq in session.answered and session.answered[seq].horizon == 1 else 0


def _stop_executing(session: _TracedSession, at_ns: int) -> None:
    if session.executed is not None and session.executed.span is not None:
        session.executed.span.end(max(at_ns, session.executed.start_ns))
    session.executed = None


def _stop_holding(session: _TracedSession, at_ns: int) -> None:
    if session.held is not None:
        session.held.span.end(max(at_ns, session.held.start_ns))
    session.held = None


def _bound(frames: dict[int, RecordedObservation] | dict[int, _Answered]) -> None:
    while len(frames) >= MOST_FRAMES:
        del frames[next(iter(frames))]
