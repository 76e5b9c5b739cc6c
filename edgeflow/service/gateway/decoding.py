"""The images of an observation, decoded in threads, straight into the memory that crosses to control."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

from edgeflow.contract import CHANNELS
from edgeflow.ipc.sealed import Sealed, seal_written
from edgeflow.service.host.threads import start_threads
from edgeflow.service.observation.pixels import decode_frame_into, frame_bytes
from edgeflow.service.observation.requests import CheckedFrame, OpenRequest

SMALL_BYTES = 320 * 240 * CHANNELS  # of pixels: sooner decoded than handed to a thread


class Decoder:
    """Decodes so many observations at a time, in separate threads."""

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="decode")
        start_threads(self._pool, threads)
        self._turns = asyncio.Semaphore(threads)

    async def begin(self, frame: CheckedFrame, opened: OpenRequest) -> asyncio.Future[tuple[Sealed, int]]:
        """Wait for a turn and begin: the pixels of the policy's cameras, and how long they took in nanoseconds.

        The future fails with RequestError or OSError. Shield it: a thread cannot be stopped, and its turn ends with it.
        """
        await self._turns.acquire()
        try:
            job = self._job(frame, opened)
        except BaseException:
            self._turns.release()
            raise
        job.add_done_callback(lambda _: self._turns.release())
        return job

    def close(self) -> None:
        """Begin nothing more."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _job(self, frame: CheckedFrame, opened: OpenRequest) -> asyncio.Future[tuple[Sealed, int]]:
        loop = asyncio.get_running_loop()
        if frame_bytes(opened) > SMALL_BYTES:
            return loop.run_in_executor(self._pool, _decoded, frame, opened)
        done: asyncio.Future[tuple[Sealed, int]] = loop.create_future()
        done.set_result(_decoded(frame, opened))
        return done


def _decoded(frame: CheckedFrame, opened: OpenRequest) -> tuple[Sealed, int]:
    began_ns = time.monotonic_ns()
    pixels = seal_written(frame_bytes(opened), lambda memory: decode_frame_into(memory, frame, opened))
    return pixels, time.monotonic_ns() - began_ns
