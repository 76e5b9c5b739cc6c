"""The service as a process."""

from __future__ import annotations

import subprocess
import sys

FRAMES = 50
USE = f"""
import resource
from edgeflow.service.host.process import keep_freed_memory
%s
def frames():
    for _ in range({FRAMES}):
        first, second, third = [b"x" * 921_600 for _ in range(3)]
frames()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
frames()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_the_pages_of_a_frame_serve_the_next_one():
    """Page faults: without the setting, as the control, each frame's memory is new."""
    kept, new = [
        int(subprocess.run([sys.executable, "-c", USE % call], check=True, capture_output=True).stdout)
        for call in ("keep_freed_memory()", "")
    ]
    assert kept < 20 < FRAMES < new
