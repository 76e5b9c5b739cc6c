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

from benchmarks.chaos.resource_faults.patient import SLOWER, Patient, Setting
from benchmarks.chaos.rules import Row, percentile
from benchmarks.chaos.service import Surroundings

QUIET_S = 10.0
JUMPS = """
import time
DAY_NS = 24 * 3600 * 10**9
true_ns = time.time_ns
def jumping_ns():
    return true_ns() + (0, DAY_NS, 0, -DAY_NS)[int(time.monotonic()) % 4]
time.time_ns = jumping_ns
time.time = lambda: jumping_ns() / 1e9
"""


def clock(setting: Setting) -> list[Row]:
    """The robot acts as if nothing happened, and a killed worker is replaced as quickly."""
    took: dict[str, list[float]] = {"fault": [], "control": []}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "sitecustomize.py").write_text(JUMPS)
        paths = [folder, os.environ.get("PYTHONPATH", "")]
        around = Surroundings(environment={"PYTHONPATH": os.pathsep.join(filter(None, paths))})
        with Patient() as well, Patient(around) as ill:
            time.sleep(QUIET_S)
            noticed = len(ill.fleet.reasons())
            for _ in range(setting.trials):
                took["control"].append(well.killed())
                took["fault"].append(ill.killed())
            jumps = len({round(each["time"] / 86400) for each in ill.service.events("state")})
            strange, code = ill.strange_holds("WORKER_LOST"), ill.exit_code()
    setting.samples["clock"] = took
    control = percentile(took["control"], 50)
    return [
        Row("days that the log saw", jumps),
        Row(f"HOLDs in {QUIET_S:g} s of jumps", noticed, "", 0),
        Row("acting again in the control, median", control, "s"),
        Row("acting again, median", percentile(took["fault"], 50), "s", SLOWER * control),
        Row("HOLDs other than WORKER_LOST", strange, "", 0),
        Row("exit code after SIGTERM", code, "", 0),
    ]
