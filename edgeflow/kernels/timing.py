"""Median times of calls, taken in turns so that a machine that slows down slows all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

import torch

SAMPLE_S = 1e-3  # a sample repeats its call until it takes about so long
MAX_REPEATS = 200
WARM_UP = 2
Seconds = Callable[[], float]


def median_us(
    calls: Mapping[str, Callable[[], Any]], device: torch.device, samples: int, clock: Seconds = time.perf_counter
) -> dict[str, float]:
    """Microseconds of one call of each, by name. clock: of a CPU; a GPU has its own."""
    repeats = {name: _repeats(call, device, clock) for name, call in calls.items()}
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(samples):
        for name, call in calls.items():
            taken[name].append(_seconds(call, repeats[name], device, clock) / repeats[name])
    return {name: 1e6 * median(times) for name, times in taken.items()}


def _repeats(call: Callable[[], Any], device: torch.device, clock: Seconds) -> int:
    for _ in range(WARM_UP):
        call()
    once = _seconds(call, 1, device, clock)
    return max(1, min(MAX_REPEATS, int(SAMPLE_S / max(once, 1e-7))))


def _seconds(call: Callable[[], Any], repeats: int, device: torch.device, clock: Seconds) -> float:
    """Of all repeats. On a GPU between two events, with the device idle before."""
    if device.type == "cuda":
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        torch.cuda.synchronize(device)
        first.record()
        for _ in range(repeats):
            call()
        last.record()
        last.synchronize()
        return float(first.elapsed_time(last)) / 1e3
    started = clock()
    for _ in range(repeats):
        call()
    return clock() - started
