"""Times of calls that take turns, and what else the machine computed meanwhile."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import linear

from edgeflow.lab.gpu.subjects.floors import Ceilings

STAT = Path("/proc/stat")
TICKS_S = os.sysconf("SC_CLK_TCK")
IDLE = (3, 4)  # columns of /proc/stat: idle, waiting for a disk
PRODUCT, COPIED = 2048, 1 << 28


@dataclass(slots=True)
class Samples:
    """Milliseconds of a call, and of processor time of all threads."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def add(self, call: Callable[[], object]) -> None:
        """Time a call."""
        used, began = time.process_time(), time.perf_counter()
        call()
        self.wall.append((time.perf_counter() - began) * 1e3)
        self.cpu.append((time.process_time() - used) * 1e3)

    def summary(self) -> dict[str, float]:
        """The figures of the paper's tables, and the median of processor time."""
        return {
            "mean": statistics.fmean(self.wall),
            "median": statistics.median(self.wall),
            "min": min(self.wall),
            "max": max(self.wall),
            "cpu_median": statistics.median(self.cpu),
            "samples": len(self.wall),
        }


def in_turn(calls: Mapping[str, Callable[[], object]], rounds: int, repeats: int = 1) -> dict[str, dict[str, float]]:
    """Rounds in which every call has its turn, of so many repeats; one round before them is not counted."""
    samples = {name: Samples() for name in calls}
    for number in range(rounds + 1):
        for name, call in calls.items():
            kept = samples[name] if number else Samples()
            for _ in range(repeats):
                kept.add(call)
    return {name: each.summary() for name, each in samples.items()}


def ceilings_of(dtype: torch.dtype) -> Ceilings:
    """Bytes per second of a copy, read and written, and FLOP/s of a matrix product: the best of several by torch."""
    a = torch.randn(PRODUCT, PRODUCT).to(dtype)
    source = torch.ones(COPIED // 4)
    target = torch.empty_like(source)
    product, copy = Samples(), Samples()
    for _ in range(7):
        product.add(lambda: a @ a)
        product.add(lambda: linear(a, a))
        copy.add(lambda: target.copy_(source))
    return Ceilings(2 * source.nbytes / (min(copy.wall) * 1e-3), 2 * PRODUCT**3 / (min(product.wall) * 1e-3))


def best(rates: Sequence[Ceilings]) -> Ceilings:
    """The highest of each rate."""
    return Ceilings(max(each.bandwidth for each in rates), max(each.matrix_rate for each in rates))


@contextmanager
def watched(found: dict[str, Any]) -> Iterator[None]:
    """Put the cores that others kept busy meanwhile, on average, and the load averages into `found`."""
    found["load_before"], busy, own, began = os.getloadavg()[0], _busy_s(), time.process_time(), time.perf_counter()
    yield
    seconds = time.perf_counter() - began
    found["load_after"], found["seconds"] = os.getloadavg()[0], round(seconds, 1)
    found["cores_of_others"] = round(max(0.0, _busy_s() - busy - (time.process_time() - own)) / seconds, 2)


def _busy_s() -> float:
    """Seconds that all cores were busy since the machine started."""
    columns = [int(each) for each in STAT.read_text().splitlines()[0].split()[1:9]]
    return sum(each for index, each in enumerate(columns) if index not in IDLE) / TICKS_S
