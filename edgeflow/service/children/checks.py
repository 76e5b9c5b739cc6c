"""Control's checks of observations that another process has read, and should have checked itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from edgeflow.config.service import ServiceConfig
from edgeflow.ipc.packets import unseal
from edgeflow.service.observation.checks import MAX_PERIOD_MS, check_numbers, check_request, check_text
from edgeflow.service.observation.pixels import frame_bytes, images_of
from edgeflow.service.observation.requests import CheckedFrame, OpenRequest
from edgeflow.service.sessions.plane import ControlPlane
from edgeflow_client.errors import RETRY_AFTER_MS, RequestError, Unavailable, WorkerError
from edgeflow_client.reasons import Reason
from edgeflow_client.types import ActionSchema

DEFAULT_PERIOD_MS = 100  # for a policy without a control rate


def checked_open(plane: ControlPlane, opened: OpenRequest) -> OpenRequest:
    """The request matched with the present policy. Its cameras must be the ones that the other process matched.

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
    if found.front and plane.worker is not None:
        found = replace(found, control_period_ns=_period_ms(plane.config, found.front, plane.worker.schema) * 1_000_000)
    return replace(found, decoded=True)


def _period_ms(config: ServiceConfig, front: str, schema: ActionSchema) -> int:
    """The time between a client's requests: as configured, or the time of the rows that it executes."""
    dialect = config.frontends.dialects[front]
    if dialect.period_ms:
        found = dialect.period_ms
    else:
        step_ms = schema.step_ms or (1000 / schema.control_rate_hz if schema.control_rate_hz else DEFAULT_PERIOD_MS)
        found = math.floor(step_ms * (dialect.rows or math.ceil(schema.horizon / 2)))
    return min(max(found, math.ceil(1000 / config.limits.rate_hz)), MAX_PERIOD_MS)


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
    """The frame with its state and its pixels, which the only descriptor holds.

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
