"""A service in its own process for a benchmark: observed from outside."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.chaos.process_facts import children, repeated, resident
from benchmarks.chaos.service import ServiceUnderTest


@dataclass(frozen=True, slots=True)
class BenchmarkedService:
    """A running service."""

    address: str
    """Address of the gRPC server."""
    http: str
    """Address of the HTTP server."""
    pid: int
    """Process id of control; the other processes are its children."""
    log: Path = Path(os.devnull)
    """File with its standard error."""

    def loop_ns(self) -> int:
        """Processor time of control's event loop so far, without its other threads."""
        return int(Path(f"/proc/{self.pid}/task/{self.pid}/schedstat").read_text().split()[0])

    def resident_bytes(self) -> dict[str, int]:
        """Resident memory of the front, and of all its descendants."""
        return {"front": resident(self.pid), "worker": sum(resident(pid) for pid in _below(self.pid))}

    def complaints(self) -> list[str]:
        """Log lines that no client should be able to cause."""
        lines = self.log.read_text(errors="replace").splitlines()
        return [line for line in lines if "Traceback" in line or '"incident"' in line or "Error:" in line]


@contextlib.contextmanager
def serving(config: Mapping[str, Any]) -> Iterator[BenchmarkedService]:
    """Run `edgeflow serve` with this configuration on free ports, and wait for its reserve worker too: only then is its
    memory complete."""
    with ServiceUnderTest(dict(config)) as service:
        yield BenchmarkedService(service.address, f"http://127.0.0.1:{service.port('http')}", service.pid, service.log)


@contextlib.contextmanager
def watching(service: BenchmarkedService, every_s: float = 0.5) -> Iterator[dict[str, int]]:
    """Watch the memory of each process: its highest growth since the beginning, in bytes."""
    before = service.resident_bytes()
    growth = dict.fromkeys(before, 0)

    def watch() -> None:
        for name, size in service.resident_bytes().items():
            growth[name] = max(growth[name], size - before[name])

    with repeated(watch, every_s):
        yield growth


def _below(pid: int) -> list[int]:
    return [each for child in children(pid) for each in (child, *_below(child))]
