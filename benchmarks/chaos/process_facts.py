"""Facts about a process from /proc."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

KIB = 1024
POOL = "event_engine"  # threads of gRPC's own pool, which grows and shrinks by itself within bounds


@dataclass(frozen=True, slots=True)
class ProcessResources:
    """Resources of a process that it could leak."""

    descriptors: int
    threads: int


def held(pid: int) -> ProcessResources:
    """Count open descriptors, and threads other than those of POOL."""
    names = threads(pid)
    return ProcessResources(len(list(Path(f"/proc/{pid}/fd").iterdir())), names.total() - names[POOL])


def threads(pid: int) -> Counter[str]:
    """Threads by name; those that Python starts have the process's name."""
    return Counter((task / "comm").read_text().strip() for task in Path(f"/proc/{pid}/task").iterdir())


def memory(pid: int) -> dict[str, int]:
    """VmRSS, VmHWM and Pss in bytes."""
    folder = Path(f"/proc/{pid}")
    lines = (folder / "status").read_text().splitlines() + (folder / "smaps_rollup").read_text().splitlines()
    wanted = {"VmRSS", "VmHWM", "Pss"}
    pairs = (line.split(":", 1) for line in lines if ":" in line)
    return {key: int(value.split()[0]) * KIB for key, value in pairs if key in wanted}


def resident(pid: int) -> int:
    """Resident memory in bytes, without the cost of counting shared pages; 0 once the process is gone."""
    return _sizes(pid).get("VmRSS", 0)


def data_size(pid: int) -> int:
    """Bytes that count towards RLIMIT_DATA; 0 once the process is gone."""
    return _sizes(pid).get("VmData", 0)


def _sizes(pid: int) -> dict[str, int]:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return {}
    pairs = (line.split(":", 1) for line in lines if line.startswith("Vm"))
    return {key: int(value.split()[0]) * KIB for key, value in pairs}


def state(pid: int) -> str:
    """The kernel's letter for the state of a process: T = stopped, Z = ended; X once it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return "X"


def command(pid: int) -> list[str]:
    """The words of a command line; none once the process is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return []


def name(pid: int) -> str:
    """The name of a process, at most 15 bytes; "" once it is gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def children(pid: int) -> list[int]:
    """Running processes that any thread of this one started; none once it is gone."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*"):
        try:
            found += [int(each) for each in (task / "children").read_text().split()]
        except OSError:
            continue
    return [each for each in found if alive(each)]


def alive(pid: int) -> bool:
    """True while the process runs; a zombie, which holds no resources, counts as ended."""
    return state(pid) not in "ZX"


def is_idle(pid: int, within_s: float = 0.05) -> bool:
    """True if the process slept, and used no processor time, during this time."""
    before = _state_and_ticks(pid)
    time.sleep(within_s)
    return before is not None and before[0] == "S" and before == _state_and_ticks(pid)


def _state_and_ticks(pid: int) -> tuple[str, int] | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return None
    return fields[0], int(fields[11]) + int(fields[12])


def started_at(pid: int) -> float:
    """Start of the process on the wall clock, to a tick of the kernel (10 ms)."""
    ticks = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19])
    since_boot = time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.time() - (since_boot - ticks / os.sysconf("SC_CLK_TCK"))


def wait_for(condition: Callable[[], bool], timeout_s: float, every_s: float = 0.005) -> float | None:
    """Seconds until the condition holds; None if it does not in time."""
    started = time.monotonic()
    while not condition():
        if time.monotonic() - started > timeout_s:
            return None
        time.sleep(every_s)
    return time.monotonic() - started


@contextmanager
def repeated(call: Callable[[], object], every_s: float) -> Iterator[None]:
    """Call repeatedly in a thread, with a pause before each call, while the context lasts."""
    leaving = threading.Event()

    def run() -> None:
        while not leaving.wait(every_s):
            call()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        leaving.set()
        thread.join()
