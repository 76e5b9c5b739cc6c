"""Control's checks of observations that another process has read: they may lack nothing that process has to check."""

from __future__ import annotations

from collections.abc import Sequence

from edgeflow.ipc.packets import unseal
from edgeflow.service.observation.checks import check_numbers, check_request, check_text
from edgeflow.service.observation.pixels import frame_bytes, images_of
from edgeflow.service.observation.requests import CheckedFrame, OpenRequest
from edgeflow.service.sessions.plane import ControlPlane
from edgeflow_client.errors import RETRY_AFTER_MS, RequestError, Unavailable, WorkerError
from edgeflow_client.reasons import Reason


def checked_open(plane: ControlPlane, opened: OpenRequest) -> OpenRequest:
    """The request matched with the present policy, whose cameras must be those that the other process matched.

    WorkerError for what it has not checked; Unavailable where it matched another policy.
    """
    try:
        check_request(opened, plane.config.limits)
    except RequestError as error:
        raise WorkerError(f"a request that was not checked: {error.field}") from None
    try:
        found = plane.matched(opened)
    except Unavailable:
        raise
    except RequestError:
        found = None
    if found is None or found.policy_cameras != opened.policy_cameras:
        text = "the policy changed while the observation was read"
        raise Unavailable(text, reason=Reason.WORKER_RESTARTING, retry_after_ms=RETRY_AFTER_MS)
    return found


def checked_frame(
    plane: ControlPlane,
    opened: OpenRequest,
    descriptors: Sequence[int],
    state: Sequence[float],
    *,
    seq: int,
    decode_ns: int,
    instruction: str | None = None,
    stamp_ns: int = 0,
) -> CheckedFrame:
    """The frame with its pixels, which are behind the one descriptor, and its state.

    WorkerError for what the other process has not checked; OSError without memory or descriptors.
    """
    if len(descriptors) != 1:
        raise WorkerError("an observation lacks its pixels")
    try:
        numbers = check_numbers(state, opened.numbers)
        if instruction is not None:
            check_text(instruction, "frame.instruction", plane.config.limits)
    except RequestError as error:
        raise WorkerError(f"an observation that was not checked: {error.field}") from None
    wanted = frame_bytes(opened)
    memory = unseal(descriptors[0], wanted)
    if len(memory) != wanted:
        raise WorkerError("an observation has the wrong number of pixels")
    return CheckedFrame(
        seq=seq,
        stamp_ns=stamp_ns,
        images=(),
        state=numbers,
        instruction=instruction,
        pixels=images_of(memory, opened),
        decode_ns=decode_ns,
    )
