"""Answers to the gateway as they cross: a packet, and sealed memory for the numbers of a long chunk."""

from __future__ import annotations

from array import array
from dataclasses import replace

from edgeflow.ipc.sealed import Sealed, seal
from edgeflow.service.children.keeper import Keeper
from edgeflow.service.children.messages import ActDone, ActRefused
from edgeflow.service.children.serving import sealed
from edgeflow_client.errors import RETRY_AFTER_MS, WorkerError
from edgeflow_client.reasons import Reason
from edgeflow_client.types import MAX_CHUNK_NUMBERS

PACKET_NUMBERS = 4096  # of a chunk; more are sealed
NUMBER = "d"  # a 64-bit float


def send_answer(keeper: Keeper, answer: ActDone | ActRefused) -> None:
    """Send an answer; a refusal in place of one that cannot be sent, so that its client does not wait for it."""
    if isinstance(answer, ActRefused):
        keeper.send(answer)
    elif not _send_done(keeper, answer):
        keeper.send(no_room(answer.request))


def whole(answer: ActDone, descriptors: list[int]) -> ActDone | ActRefused:
    """An answer with all of its numbers; a refusal if they are lost."""
    if answer.chunk is None or answer.chunk.values:
        return answer
    numbers = array(NUMBER)
    try:
        numbers.frombytes(sealed(descriptors, MAX_CHUNK_NUMBERS * numbers.itemsize))
        return replace(answer, chunk=replace(answer.chunk, values=tuple(numbers)))
    except (OSError, WorkerError):
        return no_room(answer.request)


def no_room(request: int) -> ActRefused:
    """The refusal of an observation for which, or for whose answer, memory or descriptors are lacking."""
    return ActRefused(
        request=request,
        code="RESOURCE_EXHAUSTED",
        text="no memory for another observation or its answer",
        field="",
        reason=Reason.QUEUE_FULL,
        retry_after_ms=RETRY_AFTER_MS,
    )


def _send_done(keeper: Keeper, answer: ActDone) -> bool:
    chunk = answer.chunk
    if chunk is None or len(chunk.values) <= PACKET_NUMBERS:
        return keeper.send(answer)
    try:
        numbers = Sealed(seal(array(NUMBER, chunk.values).tobytes()))
    except OSError:
        return False
    return keeper.send(replace(answer, chunk=replace(chunk, values=())), [numbers.descriptor])
