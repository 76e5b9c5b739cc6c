"""A process of tests that writes its descriptors to the first it was given, then obeys: `exit`, `crash`, `wait`."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path


def is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def run() -> None:
    descriptor, order = int(sys.argv[1]), sys.argv[2]
    listed = [int(each.name) for each in Path("/proc/self/fd").iterdir()]  # one of them was open for the list alone
    there = sorted(each for each in listed if is_open(each))
    os.write(descriptor, f"{there} {os.getsid(0) == os.getpid()} {os.environ.get('SPAWNED', '')}".encode())
    match order:
        case "exit":
            os._exit(3)
        case "crash":
            os.abort()
    threading.Event().wait()
