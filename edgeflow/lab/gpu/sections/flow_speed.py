"""Section: flow-matching policies in their published shapes: prefix, step, chunk, and chunks of several robots at once.

Passes are launched as the service does. The floors are those of subjects/flow_floors.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import median
from time import monotonic
from typing import cast

import numpy as np
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
    """Milliseconds of each kind of pass and chunks per second, launched and replayed, with their floors."""
    found: Found = {"policies": []}
    for shape in reversed(TINY if setting.small else PUBLISHED):  # π0.5 first, which is asked for most
        if setting.left_s < 0:
            found.setdefault(LEFT_OUT, []).append(shape.name)
            continue
        policy = flow_policy_of(shape, setting)
        frames = shape.frames(min(setting.frames, 2 * shape.sizes.program.passes))
        for row in _rows(setting, shape, policy, frames, found):
            found["policies"].append({"policy": shape.name, "rows of a prefix": shape.prefix, **row})
            setting.publish(found)
        del policy
        setting.release()
    return found


def flow_policy_of(shape: FlowShape, setting: SectionSetting) -> FlowPolicy:
    """The networks of a shape, as much of a policy as an engine needs."""
    network = shape.network(Placement(dtype=setting.dtype, device=setting.device, table=setting.table(shape.name)))
    alone = NetworkAlone(
        sizes=shape.sizes, network=network, fixed_rows=shape.prefix, frame_shape=frame_shape(shape.frames(1)[0])
    )
    return cast("FlowPolicy", alone)


def flow_engine_of(policy: FlowPolicy, robots: int, *, graphs: bool = False) -> FlowEngine:
    """An engine with a ring of slots for each robot, with every shape recorded if `graphs`."""
    engine = FlowEngine(policy, robots, 0, graphs=graphs)
    if engine.graphs is not None:
        engine.record_all(lambda *_: None)
        engine.graphs.seal()
    return engine


def _rows(
    setting: SectionSetting, shape: FlowShape, policy: FlowPolicy, frames: Sequence[FlowFrame], found: Found
) -> Iterator[Found]:
    measured, steps = setting.measured, shape.sizes.steps
    names = "prefix alone", "step alone", f"chunk of {steps} steps alone"
    floors: list[float | None] = [None] * len(names)
    if measured is not None:
        works = measured.floor_s(prefix_work(shape)), measured.floor_s(step_work(shape))
        floors = [1e3 * seconds for seconds in (*works, chunk_floor_s(shape, measured))]
    launched = flow_engine_of(policy, 1 if setting.graphs else max(ROBOTS))
    for name, ms, floor in zip(names, serial_ms(launched, frames[: 1 + SERIAL]), floors, strict=True):
        yield _row(f"{name}, launched", ms, 1, floor)
    engine = launched
    if setting.graphs:
        began = monotonic()
        engine = flow_engine_of(policy, max(ROBOTS), graphs=True)
        yield {"what": "recordings", "count": len(engine.contract.shapes()), "s": monotonic() - began}
        for name, ms, floor in zip(names, serial_ms(engine, frames[: 1 + SERIAL]), floors, strict=True):
            yield _row(name, ms, 1, floor)
        yield _row(f"chunk of {steps} steps in one pass", whole_ms(engine, frames[: 1 + SERIAL]), 1, floors[-1])
        yield {"what": "one pass against launched passes", **_differences(engine, launched, frames[:3])}
    for robots in ROBOTS:
        if setting.left_s < 0:
            found.setdefault(LEFT_OUT, []).append(f"{shape.name}, {robots} robots pipelined")
            continue
        floor = None if measured is None else 1e3 * pipelined_floor_s(shape, measured, robots)
        yield _row(f"pipelined, {robots} robots", pipelined_ms(engine, robots, frames), robots, floor)


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
def whole_ms(engine: FlowEngine, frames: Sequence[FlowFrame]) -> float:
    """Milliseconds of a chunk that is one pass: median over frames, without the first."""
    ends = [end for end, _ in flow_passes(engine, 1, [frames], Mode.SERIAL, ahead=0, whole=True)]
    return 1e3 * median(after - before for before, after in pairwise(ends))


@torch.inference_mode()
def _differences(one: FlowEngine, other: FlowEngine, frames: Sequence[FlowFrame]) -> Found:
    """How far chunks of one pass are off those of launched passes, and how large they are."""
    chunks = []
    for engine, whole in ((one, True), (other, False)):
        scheduler = Scheduler(limits_for(engine.policy.program().passes), whole=whole)
        found = OfflineRun(engine, scheduler, [Mode.SERIAL]).decode([frames])[0]
        chunks.append(np.stack([each.sampled.values for each in found if each.sampled.values is not None]))
    off = np.abs(chunks[0] - chunks[1])
    return {"mean": float(off.mean()), "largest": float(off.max()), "of": float(np.abs(chunks[1]).mean())}


@torch.inference_mode()
def pipelined_ms(engine: FlowEngine, robots: int, frames: Sequence[FlowFrame]) -> float:
    """Milliseconds of a pass while every robot's pipe is full: mean over the passes of a run."""
    ends = [end for end, _ in flow_passes(engine, robots, [frames] * robots, Mode.PIPELINED, engine.launch_ahead)]
    full = ends[min(engine.policy.program().passes, len(frames) // 2) : len(frames)]
    return 1e3 * (full[-1] - full[0]) / (len(full) - 1)


def flow_passes(
    engine: FlowEngine,
    robots: int,
    streams: Sequence[Sequence[FlowFrame]],
    mode: Mode,
    ahead: int,
    *,
    whole: bool = False,
) -> Iterator[tuple[float, int]]:
    """`engines.passes_of` with as many robots. whole: as in Scheduler."""
    limits = limits_for(engine.policy.program().passes, sessions=robots)
    return passes_of(OfflineRun(engine, Scheduler(limits, whole=whole), [mode] * robots), streams, ahead)
