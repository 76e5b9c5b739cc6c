"""Conversion of session events and schemas to protocol messages."""

from __future__ import annotations

from collections.abc import Iterable

from edgeflow.scheduler.pace import served_mode
from edgeflow.service.sessions.admission import SessionPlan
from edgeflow.service.sessions.events import ActionEvent, Event, NoticeEvent, StatusEvent
from edgeflow_client.rpc import control_pb2 as pb
from edgeflow_client.types import ActionSchema, Command, Disposition, Mode

_COMMANDS = {Command.ACT: pb.COMMAND_ACT, Command.HOLD: pb.COMMAND_HOLD, Command.STOP: pb.COMMAND_STOP}
_MODES = {
    Mode.SERIAL: pb.MODE_SERIAL,
    Mode.PIPELINED: pb.MODE_PIPELINED,
    Mode.DEPTH: pb.MODE_DEPTH,
    Mode.SPECULATIVE: pb.MODE_SPECULATIVE,
    Mode.AUTO: pb.MODE_AUTO,
}
_DISPOSITIONS = {
    Disposition.ACTED: pb.DISPOSITION_ACTED,
    Disposition.SUPERSEDED: pb.DISPOSITION_SUPERSEDED,
    Disposition.REJECTED: pb.DISPOSITION_REJECTED,
    Disposition.DROPPED: pb.DISPOSITION_DROPPED,
}


def server_message(event: Event) -> pb.ServerMessage:
    """The message of an event."""
    match event:
        case ActionEvent():
            return pb.ServerMessage(action=action_message(event))
        case StatusEvent():
            return pb.ServerMessage(frame_status=_status_message(event))
        case NoticeEvent():
            return pb.ServerMessage(notice=_notice_message(event))


def opened_message(
    session: int, schema: ActionSchema, plan: SessionPlan, *, model: str, valid_for_ms: int, rtc: bool
) -> pb.ServerMessage:
    """The answer to Open; a session starts in epoch 1."""
    speculation = plan.pace.speculation
    return pb.ServerMessage(
        opened=pb.Opened(
            session=session,
            epoch=1,
            schema=schema_message(schema),
            action_tokens=plan.stages,
            mode=_MODES[served_mode(plan.mode, plan.pace, plan.stages)],
            model=model,
            valid_for_ms=valid_for_ms,
            depth=plan.pace.depth,
            predicted_fps=plan.forecast.fps,
            predicted_age_ms=(plan.forecast.age_ns + plan.decode_ns) / 1e6,
            tolerance_bins=speculation.tolerance_bins if speculation else 0,
            max_passes=speculation.most_passes(plan.stages) if speculation else 0,
            rtc=rtc,
        )
    )


def schema_message(schema: ActionSchema) -> pb.ActionSchema:
    """The message of an action schema."""
    columns = zip(schema.names, schema.units, schema.low, schema.high, schema.relative, strict=True)
    return pb.ActionSchema(
        dimensions=_dimensions(columns),
        frame=schema.frame,
        rotation=schema.rotation,
        control_rate_hz=schema.control_rate_hz,
        horizon=schema.horizon,
        step_ms=schema.step_ms,
        whole_way=schema.whole_way,
    )


def action_message(event: ActionEvent) -> pb.Action:
    """The message of an action."""
    timings, report = event.timings, event.report
    return pb.Action(
        epoch=event.epoch,
        seq=event.seq,
        stamp_ns=event.stamp_ns,
        command=_COMMANDS[event.command],
        reason=event.reason,
        valid_for_ms=event.valid_for_ms,
        max_age_ms=event.max_age_ms,
        values=event.values,
        horizon=event.chunk.horizon if event.chunk else 0,
        step_ms=event.chunk.step_ms if event.chunk else 0.0,
        token_ids=event.token_ids,
        settled=event.settled,
        tolerance_bins=event.tolerance_bins,
        max_passes=event.max_passes,
        timings=pb.Timings(
            decode_ns=timings.decode_ns,
            queue_ns=timings.queue_ns,
            inference_ns=timings.inference_ns,
            passes=timings.passes,
            server_ns=event.server_ns,
        ),
        continues=report.continues,
        conditioned_steps=report.conditioned_steps,
        limited=[
            pb.Limited(dimension=each.dimension, limit=each.limit.value, beyond=each.beyond, changed=each.changed)
            for each in report.limited
        ],
        candidates=[
            pb.Candidate(score=each.score, distance=each.distance, roughness=each.roughness, beyond=each.beyond)
            for each in report.candidates
        ],
        chosen=report.chosen,
    )


def _dimensions(columns: Iterable[tuple[str, str, float, float, bool]]) -> list[pb.ActionDimension]:
    return [
        pb.ActionDimension(name=name, unit=unit, low=low, high=high, relative=relative)
        for name, unit, low, high, relative in columns
    ]


def _status_message(event: StatusEvent) -> pb.FrameStatus:
    return pb.FrameStatus(
        seq=event.seq,
        last_seq=event.last_seq,
        disposition=_DISPOSITIONS[event.disposition],
        code=event.code,
        reason=event.reason,
        text=event.text,
    )


def _notice_message(event: NoticeEvent) -> pb.Notice:
    return pb.Notice(
        kind=event.kind, epoch=event.epoch, code=event.code, text=event.text, deadline_ms=event.deadline_ms
    )
