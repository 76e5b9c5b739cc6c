"""Records the service's messages in a ledger."""

from __future__ import annotations

from edgeflow_client.connection.wire import COMMANDS, DISPOSITIONS, timings_of
from edgeflow_client.loadtest.robots.ledger import Ledger
from edgeflow_client.loadtest.robots.playing import Playing, Seamed
from edgeflow_client.reasons import Reason
from edgeflow_client.rpc import control_pb2 as pb
from edgeflow_client.types import Command, Disposition


def hear(ledger: Ledger, playing: Playing, message: pb.ServerMessage, first: int, now_ns: int) -> None:
    """Record one message. playing: of its stream. first: number of frames in the ledger that were offered before it."""
    match message.WhichOneof("kind"):
        case "action":
            _hear_action(ledger, message.action, first, now_ns, playing.heard(message.action, now_ns))
        case "frame_status":
            status = message.frame_status
            disposition = DISPOSITIONS.get(status.disposition, Disposition.DROPPED)
            reason = status.reason or status.code
            last = max(status.seq, status.last_seq)
            ledger.dispose(status.seq + first, last + first, disposition, reason, now_ns)
        case "notice":
            ledger.happen(now_ns, "notice", message.notice.kind, message.notice.text)
        case kind:
            ledger.happen(now_ns, "contradicted", Reason.UNEXPECTED_MESSAGE, str(kind))


def _hear_action(ledger: Ledger, action: pb.Action, first: int, now_ns: int, seam: Seamed) -> None:
    command = COMMANDS.get(action.command, Command.HOLD)
    if command is Command.ACT:
        ledger.act(
            action.seq + first,
            stamp_ns=action.stamp_ns,
            received_ns=now_ns,
            valid_for_ms=action.valid_for_ms,
            server_ns=action.timings.server_ns,
            timings=timings_of(action.timings),
            max_age_ms=action.max_age_ms,
            horizon=action.horizon or 1,
            step_ms=action.step_ms,
            unsettled=max(len(action.token_ids) - action.settled, 0) if action.max_passes else 0,
            continued=seam.continued,
            late=seam.late,
        )
    else:
        ledger.happen(now_ns, command.value, action.reason)
