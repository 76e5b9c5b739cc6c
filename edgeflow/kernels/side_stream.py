"""Two independent programs at once: on CUDA the second runs on a separate stream, elsewhere they run in order.

Results do not depend on it. The side stream forks from the caller's stream and joins it again by events, so that a
graph captured on the caller's stream holds both branches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

First = TypeVar("First")


class SideStream:
    """Memory: what the second program allocates belongs to the side stream, whose every use first waits for the
    caller's stream; so memory is reused only after all its readers. The result is also marked as read by the caller's
    stream, which may be another one at the next call.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def both(self, here: Callable[[], First], aside: Callable[[], Tensor]) -> tuple[First, Tensor]:
        """The results of both programs, ordered before whatever the caller enqueues next."""
        if self._stream is None:
            return here(), aside()
        caller = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(caller)
        with torch.cuda.stream(self._stream):
            second = aside()
        first = here()
        caller.wait_stream(self._stream)
        if not torch.cuda.is_current_stream_capturing():  # a graph's memory pool is its own
            second.record_stream(caller)
        return first, second
