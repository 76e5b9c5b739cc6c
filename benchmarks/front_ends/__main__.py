"""Robots' own clients as they are served: how fast, beside others, under attack, and with every kind of bad input.

    .venv/bin/python -m benchmarks.front_ends SECTION [--json FILE]

Sections: round-trip, beside-grpc, under-attack, bad-frames, late-answers, half-open, churn.
Exit code 1 when a target is missed.
"""

from __future__ import annotations

import sys
from importlib import import_module

SECTIONS = ("round-trip", "beside-grpc", "under-attack", "bad-frames", "late-answers", "half-open", "churn")


def main() -> int:
    """Run one section; return the exit code."""
    if len(sys.argv) < 2 or sys.argv[1] not in SECTIONS:
        print(__doc__)
        return 0 if sys.argv[1:] in (["-h"], ["--help"]) else 2
    name = sys.argv.pop(1)
    sys.argv[0] = f"{sys.argv[0]} {name}"
    code: int = import_module(f"benchmarks.front_ends.{name.replace('-', '_')}").main()
    return code


if __name__ == "__main__":
    raise SystemExit(main())
