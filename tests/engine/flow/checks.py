"""Checks of a flow engine over any stages: whatever shares a pass, every latent is that of the formulas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import torch

from edgeflow.engine.control.engine import FlowEngine
from edgeflow.engine.control.offline import DecodedFrame, OfflineRun, limits_for
from edgeflow.engine.flow.frames import FlowFrame, FlowSizes, Guidance
from edgeflow.lab.verify.offline import decode_arrivals
from edgeflow.scheduler.scheduler import Scheduler
from edgeflow.scheduler.session import Shift
from edgeflow_client.types import Mode
from tests.engine.flow.tiny_flow import Shape, random_frames
from tests.engine.flow.twin import FlowTwin

TOLERANCE = 1e-5


class Checked(Protocol):
    """A policy of a tiny network."""

    shape: Shape
    sizes: FlowSizes
    weights: dict[str, torch.Tensor]


def continuing(frames: Sequence[FlowFrame], seed: int) -> list[FlowFrame]:
    """The frames; some of them are guided, some have clean rows."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for index, frame in enumerate(frames):
        _, horizon, dims = frame.noise.shape
        target = torch.randn(horizon, dims, generator=generator)
        weights = torch.rand(horizon, generator=generator)
        guided = Guidance(target=target, weights=weights, most=4.0)
        clean = Guidance(target=target, weights=torch.zeros(horizon), most=0.0, clean=2, delay=2)
        found.append(replace(frame, guidance=(None, guided, clean)[index % 3]))
    return found


def assert_right(
    run: OfflineRun,
    results: Sequence[DecodedFrame],
    frames: Sequence[FlowFrame],
    twin: FlowTwin,
    tolerance: float = TOLERANCE,
) -> None:
    assert len(results) == len(frames)
    for result, frame in zip(results, frames, strict=True):
        wanted = twin.steps(frame)
        kept = run.engine.contract.watch[result.sampled.frame]  # of a whole pass only the answer is seen
        found = [*(step.x for step in kept), torch.from_numpy(result.sampled.values)]
        assert result.sampled.finite and len(found) in (1, len(wanted))
        for one, other in zip(found, wanted[-len(found) :], strict=True):
            assert (one.double() - other).abs().max() <= tolerance * max(1.0, other.abs().max())


def check_arrivals(
    engine: FlowEngine, policy: Checked, gaps: Sequence[int], depth: int, shift: Shift, seed: int
) -> None:
    """One robot, whose frames arrive after so many passes each."""
    frames = continuing(random_frames(policy.shape, len(gaps), seed), seed)
    limits = limits_for(policy.sizes.steps + 1, shift=shift)
    run = OfflineRun(engine, Scheduler(limits), [Mode.DEPTH], depth)
    results = decode_arrivals(run, list(zip(gaps, frames, strict=True)))
    assert_right(run, results, frames, FlowTwin(policy.shape, policy.weights))


def check_robots(engine: FlowEngine, policy: Checked, shift: Shift, budget: int) -> None:
    """Three robots, each in another mode. budget: of the rows that they share."""
    modes = [Mode.PIPELINED, Mode.SERIAL, Mode.DEPTH]
    streams = [continuing(random_frames(policy.shape, 7 - session, session), session) for session in range(3)]
    limits = limits_for(policy.sizes.steps + 1, sessions=3, shift=shift, row_budget=budget)
    run = OfflineRun(engine, Scheduler(limits), modes, depth=2)
    for frames, results in zip(streams, run.decode(streams), strict=True):
        assert_right(run, results, frames, FlowTwin(policy.shape, policy.weights))
