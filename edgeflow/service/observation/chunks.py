"""The chunks that a session gets: whether its client can play them."""

from __future__ import annotations

from edgeflow.service.observation.requests import OpenRequest
from edgeflow_client.errors import FailedPrecondition
from edgeflow_client.reasons import Reason
from edgeflow_client.types import ActionSchema


def check_chunks(request: OpenRequest, schema: ActionSchema) -> None:
    """Refuse single actions of chunks that hold displacements: each row goes on from the one before it."""
    if schema.horizon > 1 and any(schema.relative) and not request.chunks:
        raise FailedPrecondition(
            f"this policy answers with {schema.horizon} displacements, each from where the one before it leads: the "
            "client must play chunks (edgeflow's SDK does)",
            field="open.chunks",
            reason=Reason.CHUNKS_NEEDED,
        )
