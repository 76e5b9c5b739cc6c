"""Policies on engines as the service runs them, and the rate at which they finish frames."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import Any

from edgeflow.engine.control.engine import PolicyEngine
from edgeflow.engine.control.offline import OfflineRun, limits_for
from edgeflow.engine.executor import Ticket
from edgeflow.engine.graphs import Record
from edgeflow.engine.policy import PreparedFrame, TokenPolicy
from edgeflow.lab.gpu.section_setting import SectionSetting
from edgeflow.lab.gpu.subjects.random_policy import PolicySize, random_policy
from edgeflow.policies.openvla.policy import OpenVLAPolicy
from edgeflow.scheduler.plan import FrameRef
from edgeflow.scheduler.scheduler import Scheduler
from edgeflow.scheduler.session import Shift
from edgeflow_client.types import Mode

MAX_PROMPT_TOKENS = 128
"""The service's default."""


def engine_of(
    policy: TokenPolicy,
    size: PolicySize,
    setting: SectionSetting,
    *,
    graphs: bool,
    kind: type[PolicyEngine] = PolicyEngine,
    record: Record | None = None,
) -> PolicyEngine:
    """An engine with one slot per frame in flight, each with as many positions as in the service.

    record: makes the recordings; CUDA graphs by default.
    """
    capacity = size.image_tokens + MAX_PROMPT_TOKENS + size.stages
    table = setting.table(size.name)
    return kind(policy, size.stages, capacity, table=table, graphs=graphs, record=record)


def policy_of(setting: SectionSetting, size: PolicySize, **decoder_options: Any) -> OpenVLAPolicy:
    """A policy of random weights with the operators tuned here, unless a `table` is given."""
    options = {"table": setting.table(size.name), **decoder_options}
    return random_policy(size, setting.device, setting.dtype, **options)


def frames_per_s(engine: PolicyEngine, mode: Mode, shift: Shift, frames: list[PreparedFrame]) -> float:
    """Frames per second with passes launched ahead as the worker does; for the pipelined mode, while the pipeline is
    full.
    """
    stages = engine.policy.K
    finished = finish_times(engine, mode, shift, frames)
    full = finished if mode is Mode.SERIAL else finished[: len(frames) - stages + 1]
    return (len(full) - 1) / (full[-1] - full[0])


def passes_per_s(engine: PolicyEngine, mode: Mode, frames: list[PreparedFrame]) -> float:
    """Passes per second with passes launched ahead as the worker does; each receives a new frame."""
    ends = [end for end, _ in _passes(engine, mode, Shift.ROTATE, frames)]
    full = ends[min(engine.policy.K, len(frames) // 2) : len(frames)]
    return (len(full) - 1) / (full[-1] - full[0])


def finish_times(engine: PolicyEngine, mode: Mode, shift: Shift, frames: list[PreparedFrame]) -> list[float]:
    """The seconds at which the tokens of each frame were on the host."""
    return [end for end, finished in _passes(engine, mode, shift, frames) for _ in range(finished)]


def _passes(engine: PolicyEngine, mode: Mode, shift: Shift, frames: list[PreparedFrame]) -> Iterator[tuple[float, int]]:
    run = OfflineRun(engine, Scheduler(limits_for(engine.policy.K, shift=shift)), [mode])
    return passes_of(run, [frames], engine.launch_ahead)


def passes_of(run: OfflineRun, streams: Sequence[Sequence[Any]], ahead: int) -> Iterator[tuple[float, int]]:
    """The time at which each pass was collected, and how many frames it finished.

    A frame is offered as soon as no frame of its stream waits. ahead: passes that are launched before the first is
    awaited.
    """
    waiting = [deque(enumerate(stream, start=1)) for stream in streams]
    running: deque[Ticket[FrameRef]] = deque()
    while True:
        for session, queue in enumerate(waiting):
            if queue and not run.waiting(session):
                run.offer(session, *queue.popleft())
        launched = run.step()
        if launched is not None:
            running.append(launched)
        elif not running:
            return
        while len(running) > (ahead if launched else 0):
            finished = len(run.collect(running.popleft()))
            yield perf_counter(), finished
