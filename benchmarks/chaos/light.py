"""A policy so small that the machine's processors are left to what a scenario measures."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.chaos.robots import OVERCOMMIT


@contextmanager
def light_policy(robots: int, **settings: object) -> Iterator[dict[str, object]]:
    """A service's configuration for this many robots; the checkpoint is there while the context lasts."""
    from tests.tiny_checkpoint import write_checkpoint  # imports torch, which robots do without

    with tempfile.TemporaryDirectory(prefix="edgeflow-light-") as folder:
        yield {
            "model": str(write_checkpoint(Path(folder))),
            "alias": "light",
            "max_sessions": robots,
            **OVERCOMMIT,
            **settings,
        }
