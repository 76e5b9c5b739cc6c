"""A process that stands in for the simulated robot: it does what its address says, and imports next to nothing."""

from __future__ import annotations

import os
import sys
import threading


def run() -> None:
    address, parent, output = sys.argv[1:]
    assert int(parent) == os.getppid()
    os.dup2(int(output), 2)
    if address == "stays":
        threading.Event().wait()
    print("edgeflow robot: no service, token", os.environ.get("EDGEFLOW_TOKEN"), file=sys.stderr)
    sys.exit(3)
