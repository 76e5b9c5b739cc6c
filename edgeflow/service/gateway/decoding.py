"""The images of an observation, decoded in threads, straight into the memory that crosses to control."""

from __future__ import annotations

import asyncio
import time

from edgeflow.ipc.sealed import Sealed, seal_written
from edgeflow.service.observation.pixels import decode_frame_into, frame_bytes
from edgeflow.service.sessions.requests import CheckedFrame, OpenRequest

SMALL_BYTES = 320 * 240 * 3  # of pixels: sooner decoded than handed to a thread


class Decoder:
    """Decodes so many observations at a time."""

    def __init__(self, threads: int) -> None:
        self._turns = asyncio.Semaphore(threads)

    async def sealed(self, frame: CheckedFrame, opened: OpenRequest) -> tuple[Sealed, int]:
        """The pixels of the policy's cameras, and how long decoding took in nanoseconds; RequestError, OSError."""
        async with self._turns:
            began_ns = time.monotonic_ns()
            if frame_bytes(opened) <= SMALL_BYTES:
                pixels = _decoded(frame, opened)
            else:
                pixels = await asyncio.to_thread(_decoded, frame, opened)
            return pixels, time.monotonic_ns() - began_ns


def _decoded(frame: CheckedFrame, opened: OpenRequest) -> Sealed:
    return seal_written(frame_bytes(opened), lambda memory: decode_frame_into(memory, frame, opened))
