"""Fault tests with real processes: each injects faults, and measures how fast the system reacts and what it leaves
after.

    .venv/bin/python -m benchmarks.chaos SCENARIO [--trials N] [--seed N] [--json FILE]

Scenarios: client-kill, worker-kill, sigterm, server-stop, front-kill, soak, stalls, strangers, bodies,
children, cheat, resources, mixed.
Exit code 1 when a target is missed.
"""

from __future__ import annotations

import sys
from importlib import import_module

SCENARIOS = (
    *("client-kill", "worker-kill", "sigterm", "server-stop", "front-kill", "soak", "stalls", "strangers"),
    *("bodies", "children", "cheat", "resources", "mixed"),
)


def main() -> int:
    """Run one scenario; return the exit code."""
    if len(sys.argv) < 2 or sys.argv[1] not in SCENARIOS:
        print(__doc__)
        return 0 if sys.argv[1:] in (["-h"], ["--help"]) else 2
    name = sys.argv.pop(1)
    sys.argv[0] = f"{sys.argv[0]} {name}"
    scenario = import_module(f"benchmarks.chaos.{name.replace('-', '_')}")
    code: int = scenario.main()
    return code


if __name__ == "__main__":
    raise SystemExit(main())
