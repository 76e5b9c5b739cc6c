"""A wall clock that jumps by a day, to and fro, every second, in all processes of the service.

The machine's clock is not set: other programs need it. `time.time` jumps in each Python process instead, by a
`sitecustomize` module on its path, which a process loads before anything else. Times that libraries in C take of
themselves do not jump.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from benchmarks.chaos.resource_faults.patient import Patient, Setting, compared
from benchmarks.chaos.rules import Row
from benchmarks.chaos.service import Surroundings

QUIET_S = 10.0
DAY_S = 24 * 3600
JUMPS = """
import time
DAY_NS = 24 * 3600 * 10**9
true_ns = time.time_ns
def jumping_ns():
    return true_ns() + (0, DAY_NS, 2 * DAY_NS, -DAY_NS)[int(time.monotonic()) % 4]
time.time_ns = jumping_ns
time.time = lambda: jumping_ns() / 1e9
"""


def clock(setting: Setting) -> list[Row]:
    """The robot acts as if nothing happened, and a killed worker is replaced as quickly."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "sitecustomize.py").write_text(JUMPS)
        paths = [folder, os.environ.get("PYTHONPATH", "")]
        around = Surroundings(environment={"PYTHONPATH": os.pathsep.join(filter(None, paths))})
        with Patient() as well, Patient(around) as ill:
            time.sleep(QUIET_S)
            usual, noticed = (len(patient.fleet.reasons()) for patient in (well, ill))
            rows = compared(setting, "clock", ill, well)
            days = len({round(each["time"] / DAY_S) for each in ill.service.events("state")})
    return [
        Row("days that the log saw", days),
        Row(f"HOLDs in {QUIET_S:g} s of jumps", noticed, "", usual),
        *rows,
    ]
