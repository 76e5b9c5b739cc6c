"""What a child takes over of control's priority and CPUs: nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from edgeflow.service.fork_server import NICE

PINNED = """
import json, os
from edgeflow.service.fork_server import be_expendable, be_ordinary
os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))  # stands for SCHED_FIFO, which needs a permission
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
be_ordinary(every_cpu={every_cpu})
be_expendable()
print(json.dumps([os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0), len(os.sched_getaffinity(0))]))
"""


@pytest.mark.parametrize("every_cpu", [False, True])
def test_a_child_leaves_controls_policy_and_cpus(every_cpu: bool):
    code = PINNED.format(every_cpu=every_cpu)
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    cpus = len(os.sched_getaffinity(0)) if every_cpu else 1
    assert json.loads(done.stdout) == [os.SCHED_OTHER, NICE, cpus]
