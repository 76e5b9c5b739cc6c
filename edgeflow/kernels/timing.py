"""Median times of calls, taken in turns so that a machine that slows down slows all of them.

A model reads its weights, keys and values from memory, for between two reads of a layer lie all others. A call that is
repeated on one set of operands would find them in a cache; so what is timed goes round a ring of sets, together larger
than the last-level cache. Activations are different: the operator before has just written them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import Any

import torch

SAMPLE_S = 1e-3  # a sample repeats its call until it takes about so long
MAX_REPEATS = 200
WARM_UP = 2
Seconds = Callable[[], float]

TIMES_CACHE = 2  # a ring is at least this many caches large
MOST_CACHE_BYTES = 128 << 20  # a larger cache counts as one of this size, to bound the memory of a ring
MOST_COPIES = 64
USUAL_CACHE_BYTES = 32 << 20  # of a CPU that does not say
CPU_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


def last_level_cache(device: torch.device) -> int:
    """Bytes of the largest cache between a device and its memory."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).L2_cache_size)
    sizes = [file.read_text().strip().removesuffix("K") for file in CPU_CACHES.glob("index*/size")]
    return max((int(size) << 10 for size in sizes if size.isdigit()), default=USUAL_CACHE_BYTES)


def ring_size(cold_bytes: int, cache_bytes: int) -> int:
    """The number of operand sets, each with that many bytes from memory, that together exceed the cache."""
    if not cold_bytes:
        return 1
    wanted = TIMES_CACHE * min(cache_bytes, MOST_CACHE_BYTES)
    return max(1, min(MOST_COPIES, -(-wanted // cold_bytes)))


def rotating(calls: Sequence[Callable[[], Any]]) -> Callable[[], Any]:
    """A call that runs the next of several each time."""
    turns = cycle(calls)
    return lambda: next(turns)()


def median_us(
    calls: Mapping[str, Callable[[], Any]], device: torch.device, samples: int, clock: Seconds = time.perf_counter
) -> dict[str, float]:
    """Microseconds of one call of each, by name. clock: the clock of a CPU; a GPU has its own."""
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
    """The time of all repeats; on a GPU between two events, with the device idle before."""
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
