"""The sections of the GPU suite. Each takes the setting and returns what it found, ready for JSON."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter
from typing import Any

import torch

from edgeflow.bench import device as machine
from edgeflow.bench.floors import Ceilings, pipelined_floor_s, serial_floor_s
from edgeflow.bench.random_policy import SIZES, PolicySize, random_frames, random_policy
from edgeflow.engine.engine import LaunchedPass, PolicyEngine
from edgeflow.engine.offline import OfflineRun, decode_serially, limits_for
from edgeflow.engine.policy import PreparedFrame
from edgeflow.kernels.cases import Case
from edgeflow.kernels.catalogue import small_cases
from edgeflow.kernels.compare import deviation, tolerance
from edgeflow.kernels.implementations import REFERENCE, Hardware
from edgeflow.kernels.model_cases import ModelShape, model_cases
from edgeflow.kernels.packed_attention import naive_gather
from edgeflow.kernels.table import built_in_table
from edgeflow.kernels.tune import Tuner
from edgeflow.scheduler.ring import Shift
from edgeflow.scheduler.scheduler import Scheduler
from edgeflow.types import Mode

Found = dict[str, Any]
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
LARGEST_LOSS = 0.02  # share of tokens that may differ between passes of different shapes, in bfloat16


@dataclass(frozen=True, slots=True)
class Setting:
    """size: the policy that is measured. frames: of each timing. measured: ceilings, once their section has run."""

    device: torch.device
    dtype: torch.dtype
    size: PolicySize
    frames: int
    left_s: Callable[[], float]
    measured: Ceilings | None = None


class OffError(Exception):
    """A check failed; `found` holds what was seen."""

    def __init__(self, message: str, found: Found) -> None:
        super().__init__(message)
        self.found = found


def facts(setting: Setting) -> Found:
    return machine.facts(setting.device)


def ceilings(setting: Setting) -> Found:
    """Bytes a second of a copy, FLOP/s of a product."""
    found = machine.ceilings(setting.device, setting.dtype)
    return {"copy_bytes_per_s": found.bandwidth, "matrix_flops_per_s": found.matrix_rate}


def kernels(setting: Setting) -> Found:
    """Every implementation that may run here, on every small problem and on those of the model."""
    operators = built_in_table().operators
    small = [case for name in operators for case in small_cases(name)]
    rows = [row for case in small for dtype in FLOATS for row in _checks(case, setting.device, dtype)]
    for case in model_cases(_shape(setting.size)):
        rows += _checks(case, setting.device, setting.dtype)
    off = [row for row in rows if not row["ok"]]
    found = {"checks": len(rows), "off": off, "worst": _worst(rows)}
    if off:
        raise OffError(f"{len(off)} of {len(rows)} kernel checks are off", found)
    return found


def lossless(setting: Setting) -> Found:
    """Tokens of the pipeline against serial ones: equal in float32 at a tiny shape, nearly so at the model's own."""
    exact = {shift.value: _loss(SIZES["tiny"], setting.device, torch.float32, shift, 3) for shift in Shift}
    model = {shift.value: _loss(setting.size, setting.device, setting.dtype, shift, 2) for shift in Shift}
    found = {"tiny float32": exact, f"{setting.size.name} {_name(setting.dtype)}": model}
    allowed = 0.0 if setting.dtype == torch.float32 else LARGEST_LOSS
    if any(exact.values()) or any(share > allowed for share in model.values()):
        raise OffError("the pipeline's tokens differ from serial ones", found)
    return found


def speed(setting: Setting) -> Found:
    """Frames a second, in turns: serial, naive pipe, pipelined with both shifts; and the share of the floor."""
    size, device = setting.size, setting.device
    policy = random_policy(size, device, setting.dtype)
    frames = random_frames(size, policy, setting.frames)
    engine = _engine(policy, size, device)
    naive = _engine(random_policy(size, device, setting.dtype, attention=naive_gather), size, device)
    systems: dict[str, Callable[[], float]] = {
        "serial": lambda: _fps(engine, Mode.SERIAL, Shift.ROTATE, frames[: max(2, len(frames) // 4)]),
        "naive pipe": lambda: _fps(naive, Mode.PIPELINED, Shift.ROTATE, frames),
        "pipelined, copy": lambda: _fps(engine, Mode.PIPELINED, Shift.COPY, frames),
        "pipelined, rotate": lambda: _fps(engine, Mode.PIPELINED, Shift.ROTATE, frames),
    }
    for run in systems.values():
        run()  # compiles
    rounds = [{name: run() for name, run in systems.items()} for _ in range(3)]
    fps = {name: median(each[name] for each in rounds) for name in systems}
    found: Found = {"fps": fps, "rounds": rounds, "against_serial": {name: fps[name] / fps["serial"] for name in fps}}
    if setting.measured is not None:
        floors = {"serial": serial_floor_s(size, setting.measured)}
        floors["pipelined, rotate"] = pipelined_floor_s(size, setting.measured)
        found["floor_s"] = floors
        found["share_of_floor"] = {name: floor * fps[name] for name, floor in floors.items()}
    return found


def tuning(setting: Setting) -> Found:
    """The fastest implementation of each problem of the model; stops where the time ends."""
    tuner = Tuner(built_in_table(), "llama", setting.device, setting.dtype)
    rows: list[Found] = []
    problems = model_cases(_shape(setting.size))
    for case in problems:
        if setting.left_s() < 30:
            break
        best = tuner.tune(case)
        row = {"op": best.key.op_name, "stage": best.key.stage, "shape": best.key.shape_sig, "impl": best.impl_id}
        rows.append(row | {"params": best.params, "us": best.us, "default_us": best.default_us})
    return {"tuned": rows, "problems": len(problems)}


def profile(setting: Setting) -> Found:
    """Where the time of steady pipelined passes goes, kernel by kernel, and how often the host waits."""
    policy = random_policy(setting.size, setting.device, setting.dtype)
    engine = _engine(policy, setting.size, setting.device)
    frames = random_frames(setting.size, policy, policy.K + 4)
    _fps(engine, Mode.PIPELINED, Shift.ROTATE, frames)
    activities = [torch.profiler.ProfilerActivity.CPU]
    if setting.device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as trace:
        _fps(engine, Mode.PIPELINED, Shift.ROTATE, frames)
    events = trace.key_averages()
    waits = {each.key: each.count for each in events if "Synchronize" in each.key}
    spent = "self_device_time_total" if setting.device.type == "cuda" else "self_cpu_time_total"
    top = sorted(events, key=lambda each: getattr(each, spent), reverse=True)[:20]
    rows = [{"name": each.key, "calls": each.count, "us": getattr(each, spent)} for each in top]
    return {"frames": len(frames), "host_waits": waits, "longest": rows}


SECTIONS: dict[str, Callable[[Setting], Found]] = {
    "facts": facts,
    "ceilings": ceilings,
    "kernels": kernels,
    "lossless": lossless,
    "speed": speed,
    "profile": profile,
    "tuning": tuning,
}


def with_ceilings(setting: Setting, found: Found) -> Setting:
    """The setting of the sections after `ceilings`."""
    return replace(setting, measured=Ceilings(found["copy_bytes_per_s"], found["matrix_flops_per_s"]))


def _shape(size: PolicySize) -> ModelShape:
    text = size.text
    sizes = text.hidden_size, text.intermediate_size, text.num_attention_heads, text.num_key_value_heads
    return ModelShape("llama", *sizes, text.head_dim, text.vocab_size, size.rows, size.stages)


def _engine(policy: Any, size: PolicySize, device: torch.device) -> PolicyEngine:
    return PolicyEngine(policy, policy.K, size.rows + policy.K, device)


def _loss(size: PolicySize, device: torch.device, dtype: torch.dtype, shift: Shift, fills: int) -> float:
    """Share of tokens that differ."""
    policy = random_policy(size, device, dtype)
    engine = _engine(policy, size, device)
    frames = random_frames(size, policy, fills * policy.K)
    serial = [decoded.sampled for decoded in decode_serially(engine, frames)]
    run = OfflineRun(engine, Scheduler(limits_for(policy.K, shift=shift)), [Mode.PIPELINED])
    packed = [decoded.sampled for decoded in run.decode([frames])[0]]
    if not all(sampled.finite for sampled in (*serial, *packed)):
        return 1.0
    pairs = zip(serial, packed, strict=True)
    differ = sum(a != b for one, other in pairs for a, b in zip(one.token_ids, other.token_ids, strict=True))
    del engine, policy, run
    _release(device)
    return differ / (len(frames) * size.stages)


def _fps(engine: PolicyEngine, mode: Mode, shift: Shift, frames: list[PreparedFrame]) -> float:
    """Frames a second with one pass launched ahead, as the worker runs; pipelined: while the pipe is full."""
    stages = engine.policy.K
    run = OfflineRun(engine, Scheduler(limits_for(stages, shift=shift)), [mode])
    waiting = list(enumerate(frames, start=1))
    finished: list[float] = []  # when
    pending: LaunchedPass | None = None
    while True:
        if waiting and not run.waiting(0):
            run.offer(0, *waiting.pop(0))
        launched = run.step()
        if pending is not None:
            finished += [perf_counter()] * len(engine.collect(pending))
        if launched is None:
            break
        pending = launched
    full = finished if mode is Mode.SERIAL else finished[: len(frames) - stages + 1]
    return (len(full) - 1) / (full[-1] - full[0])


def _checks(case: Case, device: torch.device, dtype: torch.dtype) -> list[Found]:
    """Each implementation against the reference; one that does not compile or run is a result, not an end."""
    table, (stage, shape_sig) = built_in_table(), case.signed()
    reference = table.implementation(case.op_name, REFERENCE).load()
    rows: list[Found] = []
    for impl_id in table.candidates(case.op_name):
        candidate = table.implementation(case.op_name, impl_id)
        if impl_id == REFERENCE or candidate.objection(Hardware.of(device), dtype):
            continue
        allowed = tolerance(case, dtype)
        row = {"op": case.op_name, "impl": impl_id, "dtype": _name(dtype), "stage": stage, "shape": shape_sig}
        try:
            off = deviation(case, candidate.load(), reference, device, dtype)
            rows.append(row | {"deviation": off, "tolerance": allowed, "ok": off <= allowed})
        except Exception as error:
            told = f"{type(error).__name__}: {error}"[:300]
            rows.append(row | {"deviation": None, "tolerance": allowed, "ok": False, "error": told})
    return rows


def _worst(rows: list[Found]) -> Found:
    """Largest deviation of each operator, implementation and dtype."""
    worst: Found = {}
    for row in rows:
        name = f"{row['op']} {row['impl']} {row['dtype']}"
        worst[name] = max(worst.get(name, 0.0), row["deviation"] or 0.0)
    return worst


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _release(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
