"""Section: a profiler's trace of steady pipelined passes: waits of the host, launches ahead, gaps, kinds of kernels.

Events are those of a Chrome trace: `ts` and `dur` in microseconds, `cat` for their kind; a kernel carries the
`correlation` of the call that launched it. A pass is the host's time in `launch`, marked PASS.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch.profiler import ProfilerActivity, profile, record_function

from edgeflow.engine.control.engine import PolicyEngine
from edgeflow.engine.executor import Ticket
from edgeflow.lab.gpu.section_order import Found
from edgeflow.lab.gpu.section_setting import SectionSetting
from edgeflow.lab.gpu.sections.policy_speed import ways
from edgeflow.lab.gpu.subjects.engines import engine_of, finish_times, policy_of
from edgeflow.lab.gpu.subjects.random_policy import random_frames
from edgeflow.scheduler.plan import Pass, Ref
from edgeflow.scheduler.session import Shift
from edgeflow_client.types import Mode

STEADY = 6  # frames in addition to those that fill the pipeline
MOST_BYTES = 5 << 20
TRACE = "pipelined-trace.json.gz"
PASS = "edgeflow pass"
CALLS = ("cuda_runtime", "cuda_driver")
WORK = ("kernel", "gpu_memcpy", "gpu_memset")
WAITS = ("Synchronize", "cudaMemcpy")  # cudaMemcpyAsync waits only if memory is pageable, which its duration shows
LONGEST_COPY_US = 200.0
CLASSES = {
    "GEMM": ("gemm", "gemv", "cutlass", "nvjet", "xmma", "cublas", "splitk", "scaled_mm"),
    "attention": ("attention", "_attend", "_join", "flash", "fmha", "prefill", "decode"),
    "norm": ("norm",),
    "rope and KV": ("_turn", "_carry", "rope", "kv"),
    "activation": ("_gate", "silu", "gelu"),
    "sampling": ("_best_of", "argmax"),
    "quantisation": ("_quantise",),
    "copy": ("memcpy", "memset", "copy", "cat", "index", "gather", "scatter"),
}
"""Parts of kernels' names, edgeflow's and the libraries', in lower case; the first matching class counts."""
Event = Mapping[str, Any]


class MarkedEngine(PolicyEngine):
    """An engine whose launches have a name in a trace."""

    def launch(self, planned: Pass[Ref], prompts: Mapping[Ref, Any], *, waits: bool = False) -> Ticket[Ref]:
        with record_function(PASS):
            return super().launch(planned, prompts, waits=waits)


def passes(setting: SectionSetting) -> Found:
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


@dataclass(frozen=True, slots=True)
class Interval:
    """A stretch of a trace, microseconds."""

    start: float
    end: float


def analysed(events: Iterable[Event], skipped: int) -> Found:
    """Findings of the steady passes: after the `skipped` that fill the pipe and before those that drain it."""
    timed = [event for event in events if event.get("ph") == "X" and "dur" in event]
    marks = sorted((_interval(each) for each in timed if each["name"] == PASS), key=lambda each: each.start)
    steady = marks[skipped : len(marks) - skipped + 1]
    calls = [event for event in timed if event.get("cat") in CALLS]
    work = [event for event in timed if event.get("cat") in WORK]
    found: Found = {"steady passes": len(steady), "host ms/pass": _mean([(m.end - m.start) / 1e3 for m in steady])}
    found["waits inside a pass"] = waits(calls, steady)
    if not work:
        return found | {"device": "not in this trace"}
    on_device = [_device_work(mark, calls, work) for mark in steady]
    pairs = zip(on_device, steady[1:], strict=False)
    ahead = [any(after.start < _interval(each).end for each in mine) for mine, after in pairs]
    steady_work = [each for mine in on_device for each in mine]
    return found | {
        "launched before the pass before had ended": f"{sum(ahead)} of {len(ahead)}",
        **_busy([_interval(each) for each in steady_work]),
        "classes": classes(steady_work),
    }


def waits(calls: Iterable[Event], passes: Sequence[Interval]) -> list[Found]:
    """Calls by which the host waits for the device, started inside a pass, by name."""
    counts: dict[str, int] = {}
    for call in calls:
        inside = any(mark.start <= call["ts"] < mark.end for mark in passes)
        if inside and _is_wait(call):
            counts[call["name"]] = counts.get(call["name"], 0) + 1
    return [{"call": name, "count": count} for name, count in counts.items()]


def _is_wait(call: Event) -> bool:
    name = call["name"]
    if name.startswith("cudaMemcpyAsync"):
        return bool(call["dur"] > LONGEST_COPY_US)
    return any(wait in name for wait in WAITS)


def classes(work: Sequence[Event]) -> list[Found]:
    """Share of the device's time by kind of kernel, the largest first."""
    total = sum(event["dur"] for event in work) or 1.0
    times: dict[str, float] = {}
    counts: dict[str, int] = {}
    for event in work:
        name = class_of(event["name"])
        times[name] = times.get(name, 0.0) + event["dur"]
        counts[name] = counts.get(name, 0) + 1
    order = sorted(times, key=lambda name: -times[name])
    return [{"class": name, "share": times[name] / total, "kernels": counts[name]} for name in order]


def class_of(name: str) -> str:
    """The class of a kernel, by its name."""
    low = name.lower()
    return next((each for each, words in CLASSES.items() if any(word in low for word in words)), "other")


def _device_work(mark: Interval, calls: Sequence[Event], work: Sequence[Event]) -> list[Event]:
    """The device's work that was launched by the calls inside a pass."""
    launched = {_correlation(call) for call in calls if mark.start <= call["ts"] < mark.end} - {None}
    return [event for event in work if _correlation(event) in launched]


def _busy(spans: Sequence[Interval]) -> Found:
    """The busy share of the time from the first to the last kernel, and its gaps; overlapping kernels count once."""
    if not spans:
        return {}
    busy, gaps = 0.0, []
    end = min(each.start for each in spans)
    first = end
    for each in sorted(spans, key=lambda each: each.start):
        if each.start > end:
            gaps.append(each.start - end)
        busy += max(0.0, each.end - max(end, each.start))
        end = max(end, each.end)
    share = busy / (end - first) if end > first else 1.0
    return {
        "device busy share": share,
        "gaps": len(gaps),
        "µs in gaps": sum(gaps),
        "longest gap µs": max(gaps, default=0.0),
    }


def _interval(event: Event) -> Interval:
    return Interval(float(event["ts"]), float(event["ts"]) + float(event["dur"]))


def _correlation(event: Event) -> Any:
    return event.get("args", {}).get("correlation")


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
