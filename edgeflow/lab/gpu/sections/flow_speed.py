"""Section: flow-matching policies in their published shapes: prefix, step, chunk, and chunks of several robots at once.

Passes are launched as the service does. The floors are those of subjects/flow_floors.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import median
from typing import cast

import torch

from edgeflow.engine.control.engine import FlowEngine
from edgeflow.engine.control.offline import OfflineRun, limits_for
from edgeflow.engine.flow.frames import FlowFrame
from edgeflow.engine.flow.policy import FlowPolicy
from edgeflow.engine.policy import Placement
from edgeflow.lab.gpu.section_order import LEFT_OUT, Found
from edgeflow.lab.gpu.section_setting import SectionSetting
from edgeflow.lab.gpu.subjects.engines import passes_of
from edgeflow.lab.gpu.subjects.flow_floors import chunk_floor_s, pipelined_floor_s, prefix_work, step_work
from edgeflow.lab.gpu.subjects.random_flow import PUBLISHED, TINY, FlowShape
from edgeflow.lab.verify.policies.flow.recorded_runs import NetworkAlone, frame_shape
from edgeflow.scheduler.scheduler import Scheduler
from edgeflow_client.types import Mode

ROBOTS = (1, 2, 4)
SERIAL = 4  # frames whose passes are timed one by one, after one warm-up frame


def flow_policies(setting: SectionSetting) -> Found:
    """Milliseconds of each kind of pass and chunks per second, with their floors."""
    found: Found = {"policies": []}
    for shape in TINY if setting.small else PUBLISHED:
        if setting.left_s < 0:
            found.setdefault(LEFT_OUT, []).append(shape.name)
            continue
        engine = flow_engine_of(shape, setting, max(ROBOTS))
        for row in _rows(setting, shape, engine, found):
            found["policies"].append({"policy": shape.name, "rows of a prefix": shape.prefix, **row})
            setting.publish(found)
        del engine
        setting.release()
    return found


def flow_engine_of(shape: FlowShape, setting: SectionSetting, robots: int) -> FlowEngine:
    """An engine with a ring of slots for each robot."""
    table = setting.table(shape.name)
    network = shape.network(Placement(dtype=setting.dtype, device=setting.device, table=table))
    alone = NetworkAlone(
        sizes=shape.sizes, network=network, fixed_rows=shape.prefix, frame_shape=frame_shape(shape.frames(1)[0])
    )
    slots, capacity = robots * shape.sizes.program.passes, shape.prefix + shape.sizes.step_rows
    return FlowEngine(cast("FlowPolicy", alone), slots, capacity)


def _rows(setting: SectionSetting, shape: FlowShape, engine: FlowEngine, found: Found) -> Iterator[Found]:
    frames = shape.frames(min(setting.frames, 2 * shape.sizes.program.passes))
    measured, steps = setting.measured, shape.sizes.steps
    names = "prefix alone", "step alone", f"chunk of {steps} steps alone"
    floors: list[float | None] = [None] * len(names)
    if measured is not None:
        works = measured.floor_s(prefix_work(shape)), measured.floor_s(step_work(shape))
        floors = [1e3 * seconds for seconds in (*works, chunk_floor_s(shape, measured))]
    for name, ms, floor in zip(names, serial_ms(engine, frames[: 1 + SERIAL]), floors, strict=True):
        yield _row(name, ms, 1, floor)
    for robots in ROBOTS:
        if setting.left_s < 0:
            found.setdefault(LEFT_OUT, []).append(f"{shape.name}, {robots} robots pipelined")
            continue
        ms = pipelined_ms(engine, robots, frames)
        floor = None if measured is None else 1e3 * pipelined_floor_s(shape, measured, robots)
        yield _row(f"pipelined, {robots} robots", ms, robots, floor)


def _row(name: str, ms: float, chunks: int, floor_ms: float | None) -> Found:
    row: Found = {"what": name, "ms": ms}
    if name.startswith(("chunk", "pipelined")):
        row["chunks/s"] = 1e3 * chunks / ms
    return row if floor_ms is None else {**row, "floor ms": floor_ms, "share of floor": floor_ms / ms}


@torch.inference_mode()
def serial_ms(engine: FlowEngine, frames: Sequence[FlowFrame]) -> tuple[float, float, float]:
    """Milliseconds of a prefix and of a step, each awaited, and of a chunk whose passes are launched ahead: medians
    over frames, without the first.
    """
    passes = engine.policy.program().passes
    times = [end for end, _ in flow_passes(engine, 1, [frames], Mode.SERIAL, ahead=0)]
    starts = range(passes, len(times), passes)
    prefixes = [times[at] - times[at - 1] for at in starts]
    steps = [times[at + one] - times[at + one - 1] for at in starts for one in range(1, passes)]
    ends = [end for end, done in flow_passes(engine, 1, [frames], Mode.SERIAL, engine.launch_ahead) if done]
    chunks = [after - before for before, after in pairwise(ends)]
    return 1e3 * median(prefixes), 1e3 * median(steps), 1e3 * median(chunks)


@torch.inference_mode()
def pipelined_ms(engine: FlowEngine, robots: int, frames: Sequence[FlowFrame]) -> float:
    """Milliseconds of a pass while every robot's pipe is full: mean over the passes of a run."""
    ends = [end for end, _ in flow_passes(engine, robots, [frames] * robots, Mode.PIPELINED, engine.launch_ahead)]
    full = ends[min(engine.policy.program().passes, len(frames) // 2) : len(frames)]
    return 1e3 * (full[-1] - full[0]) / (len(full) - 1)


def flow_passes(
    engine: FlowEngine, robots: int, streams: Sequence[Sequence[FlowFrame]], mode: Mode, ahead: int
) -> Iterator[tuple[float, int]]:
    """`engines.passes_of` with as many robots."""
    limits = limits_for(engine.policy.program().passes, sessions=robots)
    return passes_of(OfflineRun(engine, Scheduler(limits), [mode] * robots), streams, ahead)
