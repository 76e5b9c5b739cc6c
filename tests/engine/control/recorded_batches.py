"""Checks of recorded passes of a policy that answers in one: batches of any size, against each frame by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from edgeflow.engine.control.engine import OnePassEngine
from edgeflow.engine.control.warmup import warm_up
from edgeflow.engine.graphs import record_passes
from edgeflow.engine.policy import OnePassPolicy
from edgeflow.lab.verify.offline import run_once
from edgeflow.scheduler.plan import FrameRef, Pass, Segment
from edgeflow.scheduler.session import Shift
from tests.engine.recorded_graphs import Replays


def check_batches(policy: OnePassPolicy, frames: Sequence[Any], text_rows: int, recordings: int) -> None:
    """Any number of frames, in any order; one replay each time, but for more frames than the largest batch has.

    recordings: how many there must be.
    """
    torch.set_num_threads(1)
    engine = OnePassEngine(policy, len(frames), text_rows, graphs=True, record=Replays())
    assert record_passes(engine, lambda *_: None, required=True) == f"{recordings} graphs"
    engine.graphs.seal()
    warm_up(engine, Shift.ROTATE, lambda *_: None)
    assert engine.graphs.eager_passes == 0
    alone = np.concatenate([run_once(policy, [frame]).numpy() for frame in frames])
    for count in range(1, len(frames) + 1):
        for first in (0, len(frames) - count):
            engine.record.count = engine.graphs.eager_passes = 0
            found = chunks(engine, frames[first : first + count])
            np.testing.assert_allclose(found, alone[first : first + count], rtol=0, atol=1e-5 * np.abs(alone).max())
            assert (engine.record.count, engine.graphs.eager_passes) == ((1, 0) if count <= 4 else (0, 1))


def chunks(engine: OnePassEngine, frames: Sequence[Any]) -> np.ndarray:
    """[B, horizon, D], normalised, of frames in one pass."""
    prompts = {FrameRef(session, 1, 1): frame for session, frame in enumerate(frames)}
    segments = [Segment(sequence=ref, slot=ref.session, start=0, length=1, stage=0) for ref in prompts]
    found = engine.collect(engine.launch(Pass(0, tuple(segments)), prompts))
    return np.concatenate([outcome.values for outcome in found])
