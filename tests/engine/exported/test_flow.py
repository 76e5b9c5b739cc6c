"""Flow policies whose networks are graphs of fixed shapes: every latent is the one that the formulas give."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("onnxruntime")
pytest.importorskip("onnx_ir")

from edgeflow.engine.control.engine import FlowEngine
from edgeflow.engine.control.offline import OfflineRun, limits_for
from edgeflow.engine.exported.tokens import step_batches
from edgeflow.lab.verify.policies.flow.recorded_runs import KeptSteps
from edgeflow.scheduler.scheduler import Scheduler
from edgeflow.scheduler.session import Shift
from edgeflow_client.types import Mode
from tests.engine.exported.static_policy import StaticFlowPolicy
from tests.engine.flow.checks import assert_right, check_arrivals, check_robots
from tests.engine.flow.tiny_flow import SHAPES, random_frames
from tests.engine.flow.twin import FlowTwin


@pytest.fixture(scope="module", params=SHAPES)
def policy(request) -> StaticFlowPolicy:
    torch.set_num_threads(1)
    return StaticFlowPolicy(request.param)


def make_engine(policy: StaticFlowPolicy, sessions: int = 1) -> FlowEngine:
    """Its state holds NaN wherever nothing was written; slots are zeros, as graphs need them."""
    engine = FlowEngine(policy, sessions, 6)
    engine.contract.watch = KeptSteps()
    engine.contract.state._lines.fill_(torch.nan)
    return engine


@settings(max_examples=6, deadline=None)
@given(
    gaps=st.lists(st.integers(0, 7), min_size=1, max_size=8),
    depth=st.integers(1, 6),
    shift=st.sampled_from(Shift),
    seed=st.integers(0, 3),
)
def test_any_arrival_pattern(policy, gaps: list[int], depth: int, shift: Shift, seed: int):
    check_arrivals(make_engine(policy), policy, gaps, depth, shift, seed)


@pytest.mark.parametrize("shift", Shift)
@pytest.mark.parametrize("budget", [1, 1 << 30], ids=["alone", "together"])
def test_robots_share_passes(policy, shift: Shift, budget: int):
    check_robots(make_engine(policy, 3), policy, shift, budget)


@pytest.mark.parametrize("shift", Shift)
def test_a_frame_that_is_not_finite_spoils_no_other(policy, shift: Shift):
    """Nor those that have its slot later, with a shorter bucket."""
    frames = random_frames(policy.shape, 12, seed=2)
    words = [5, 5, 6, *[2] * 9]
    frames = [replace(frame, prompt_ids=tuple(range(count))) for frame, count in zip(frames, words, strict=True)]
    frames[2] = replace(
        frames[2],
        state=torch.full_like(frames[2].state, torch.nan),
        pixel_values=torch.full_like(frames[2].pixel_values, torch.nan),
    )
    limits = limits_for(policy.sizes.steps + 1, shift=shift)
    run = OfflineRun(engine := make_engine(policy), Scheduler(limits), [Mode.PIPELINED])
    results = run.decode([frames])[0]
    assert [each.sampled.finite for each in results] == [True, True, False, *[True] * 9]
    assert_right(run, results[3:], frames[3:], FlowTwin(policy.shape, policy.weights), tolerance=1e-4)
    assert shift is Shift.COPY or torch.from_numpy(engine.contract.stages.kv).isfinite().all()


@given(
    slots=st.lists(st.integers(0, 11), max_size=12, unique=True),
    copies=st.integers(1, 3),
    sizes=st.sets(st.integers(1, 12), min_size=1, max_size=3),
)
def test_every_row_is_in_one_batch(slots: list[int], copies: int, sizes: set[int]):
    rows = [slot for slot in slots for _ in range(copies)]
    batches = step_batches(rows, sorted(sizes), there=12)
    assert sorted(row for batch in batches for row in batch.rows) == list(range(len(rows)))
    for batch in batches:
        assert batch.size in sizes
        assert len(set(batch.lines)) == len(batch.lines) == len(batch.rows)
        assert all(0 <= line < batch.size for line in batch.lines)
        if batch.first is not None:
            assert 0 <= batch.first <= 12 - batch.size
            assert [rows[row] for row in batch.rows] == [batch.first + line for line in batch.lines]


def test_neighbouring_slots_are_read_in_place():
    (batch,) = step_batches([5, 3, 4], [1, 4], there=6)
    assert (batch.first, batch.lines, batch.rows) == (2, (1, 2, 3), (1, 2, 0))
    (batch,) = step_batches([0, 5], [1, 4], there=6)
    assert batch.first is None
