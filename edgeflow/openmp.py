"""How long idle threads of OpenMP, with which torch and our products in C++ compute on a CPU, keep a core busy."""

from __future__ import annotations

from collections.abc import MutableMapping

SPINS = "10000"
"""Looks for work before a thread sleeps. On an Intel Xeon a pass loses nothing with as many; with 3,000 it does."""


def limit_spinning(environment: MutableMapping[str, str]) -> None:
    """Let idle threads look for work 10,000 times instead of 300,000 times, unless the user has set how they wait.

    It takes effect where torch is loaded afterwards. A thread that spins for milliseconds keeps others from its core,
    and those that it waits for may be among them.
    """
    if not environment.keys() & {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}:
        environment["GOMP_SPINCOUNT"] = SPINS
