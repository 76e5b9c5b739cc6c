"""When work starts and ends on a device that runs behind the host: CUDA events behind a small interface."""

from __future__ import annotations

from typing import Protocol

import torch

from edgeflow_client.clock import MonotonicClock


class Stamp(Protocol):
    """A mark in the device's queue, reached when everything enqueued before it is done.

    recorded_ns: when the host enqueued it, by the clock of the worker's loop.
    """

    recorded_ns: int

    @property
    def reached(self) -> bool: ...

    def wait(self) -> None:
        """Block until it is reached."""
        ...

    def since_ns(self, earlier: Stamp) -> int:
        """Device time from an earlier stamp, nanoseconds; both must have been reached."""
        ...


class CudaStamp:
    """A timing event on the device's current stream."""

    def __init__(self, device: torch.device) -> None:
        self.event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self.event.record(torch.cuda.current_stream(device))
        self.recorded_ns = MonotonicClock().now_ns()

    @property
    def reached(self) -> bool:
        return bool(self.event.query())  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        self.event.synchronize()

    def since_ns(self, earlier: Stamp) -> int:
        if not isinstance(earlier, CudaStamp):
            raise TypeError(f"{type(earlier).__name__} is of another device")
        milliseconds: float = earlier.event.elapsed_time(self.event)
        return round(milliseconds * 1e6)
