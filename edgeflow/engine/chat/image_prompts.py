"""Prompts with images, built outside the worker's loop.

Resizing four images of four megapixels takes hundreds of milliseconds, longer than a gap between control passes. It is
done in a thread, by operations that release the interpreter's lock; the loop takes the finished prompt.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from edgeflow.ipc.chat_messages import ChatStart
from edgeflow.models.chat import ChatModel
from edgeflow.models.prompt import Prompt
from edgeflow_client.errors import InvalidArgument

NICE = 5
"""Priority of the thread. Mild on purpose: between its operations it holds the interpreter's lock for microseconds, and
with a much lower priority the loop could wait for that lock while other processes run."""


class ImagePrompts:
    """Builds one prompt after the other in a thread; it starts with the first request that has images."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="images", initializer=_yield_to_the_loop)

    def build(self, model: ChatModel, message: ChatStart, wake: Callable[[], None]) -> Future[Prompt]:
        """The prompt, or the InvalidArgument that refuses it. wake: called from the thread when either is there."""
        future = self._thread.submit(lambda: model.prompt(message.ids, images_of(message)))
        future.add_done_callback(lambda _: wake())
        return future


def images_of(message: ChatStart) -> list[NDArray[np.uint8]]:
    """The images of a request, RGB [H, W, 3], over its payload; InvalidArgument where that is too short."""
    images, place = [], 0
    for height, width in zip(message.sizes[::2], message.sizes[1::2], strict=True):
        size = height * width * 3
        if size <= 0 or place + size > len(message.payload):
            raise InvalidArgument("has fewer bytes than its images", field="payload")
        pixels = np.frombuffer(message.payload, np.uint8, size, place)
        images.append(pixels.reshape(height, width, 3))
        place += size
    return images


def _yield_to_the_loop() -> None:
    """Give this thread an ordinary, slightly lower priority, whatever the worker itself was given."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
            os.setpriority(os.PRIO_PROCESS, 0, NICE)  # on Linux: of the calling thread
