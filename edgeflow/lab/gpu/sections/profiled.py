"""Section: a profiler's trace of steady pipelined passes, kept beside the results and analysed (trace.py)."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from typing import Any

from torch.profiler import ProfilerActivity, profile, record_function

from edgeflow.engine.control.engine import PolicyEngine
from edgeflow.engine.executor import Ticket
from edgeflow.lab.gpu.order import Found
from edgeflow.lab.gpu.sections.policy_speed import ways
from edgeflow.lab.gpu.setting import Setting
from edgeflow.lab.gpu.subjects.engines import engine_of, finish_times, policy_of
from edgeflow.lab.gpu.subjects.random_policy import random_frames
from edgeflow.lab.gpu.subjects.trace import PASS, analysed
from edgeflow.scheduler.plan import Pass, Ref
from edgeflow.scheduler.session import Shift
from edgeflow_client.types import Mode

STEADY = 6  # frames besides those that fill the pipe
MOST_BYTES = 5 << 20
TRACE = "pipelined-trace.json.gz"


class MarkedEngine(PolicyEngine):
    """An engine whose launches have a name in a trace."""

    def launch(self, planned: Pass[Ref], prompts: Mapping[Ref, Any], *, waits: bool = False) -> Ticket[Ref]:
        with record_function(PASS):
            return super().launch(planned, prompts, waits=waits)


def passes(setting: Setting) -> Found:
    """Findings from the trace; the trace itself is deleted if it is larger than MOST_BYTES."""
    size = setting.size
    model = policy_of(setting, size)
    engine = engine_of(model, size, setting, graphs=ways(setting)[0], kind=MarkedEngine)
    frames = random_frames(size, model, size.stages + STEADY)
    finish_times(engine, Mode.PIPELINED, Shift.ROTATE, frames)
    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if setting.cuda else [])]
    with profile(activities=kinds) as trace:
        finish_times(engine, Mode.PIPELINED, Shift.ROTATE, frames)
    path = setting.out / TRACE
    trace.export_chrome_trace(str(path))
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    found: Found = {"trace": path.name, "trace bytes": path.stat().st_size, **analysed(events, size.stages)}
    if path.stat().st_size > MOST_BYTES:
        path.unlink()
        found["trace"] = f"left out: larger than {MOST_BYTES} bytes"
    return found
