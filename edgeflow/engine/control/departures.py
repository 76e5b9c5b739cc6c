"""Messages about frames that leave without an action."""

from __future__ import annotations

from edgeflow.ipc.messages import FrameDropped
from edgeflow.scheduler.plan import FrameRef, Leaving
from edgeflow_client.reasons import Reason
from edgeflow_client.types import Disposition

_DEPARTURES = {
    Leaving.SUPERSEDED: (
        Disposition.SUPERSEDED,
        "",
        Reason.SUPERSEDED,
        "a newer frame came before this one was started",
    ),
    Leaving.OVERTAKEN: (
        Disposition.SUPERSEDED,
        "",
        Reason.OVERTAKEN,
        "a newer frame was answered first",
    ),
    Leaving.EXPIRED: (
        Disposition.SUPERSEDED,
        "",
        Reason.ACTION_TOO_OLD,
        "it was too old to be answered, and a newer frame is in flight",
    ),
    Leaving.EPOCH_CHANGED: (
        Disposition.DROPPED,
        "ABORTED",
        Reason.EPOCH_CHANGED,
        "the instruction or episode changed while this frame was under way",
    ),
    Leaving.CLOSED: (Disposition.DROPPED, "CANCELLED", Reason.SESSION_CLOSED, "the session was closed"),
}


def departed(ref: FrameRef, why: Leaving) -> FrameDropped:
    """The message about a frame that left the scheduler."""
    return dropped(ref, *_DEPARTURES[why])


def dropped(ref: FrameRef, disposition: Disposition, code: str, reason: str, text: str) -> FrameDropped:
    """The message about a frame that left."""
    return FrameDropped(
        session=ref.session,
        epoch=ref.epoch,
        seq=ref.seq,
        disposition=disposition.value,
        code=code,
        reason=reason,
        text=text,
    )
