"""Threads of a pool, started before memory is short."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import Executor


def start_threads(pool: Executor, count: int) -> None:
    """Start a pool's threads, so that none is needed once memory or threads are short."""
    begun = threading.Event()
    try:
        with contextlib.suppress(RuntimeError):
            for _ in range(count):
                pool.submit(begun.wait)
    finally:
        begun.set()
