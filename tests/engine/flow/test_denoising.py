"""The rule for flow policies: whatever shares a pass, every latent is the one that the frame alone gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeflow.engine.control.engine import FlowEngine
from edgeflow.engine.control.offline import OfflineRun, limits_for
from edgeflow.engine.flow.frames import RTCSettings
from edgeflow.engine.flow.rows import FlowLayouts, PrefixSegment, StepSegment
from edgeflow.kernels.table.operator_table import built_in_table
from edgeflow.lab.verify.policies.flow.recorded_runs import KeptSteps
from edgeflow.models.grouped import CROSS, JOINT
from edgeflow.scheduler.scheduler import Scheduler
from edgeflow.scheduler.session import Shift
from edgeflow_client.types import Mode
from tests.engine.flow.checks import assert_right, check_arrivals, check_robots, continuing
from tests.engine.flow.tiny_flow import SHAPES, TinyFlowPolicy, random_frames
from tests.engine.flow.twin import FlowTwin
from tests.engine.recorded_graphs import record
from tests.engine.test_graphs import ON_THE_DEVICE


@pytest.fixture(scope="module", params=SHAPES)
def policy(request) -> TinyFlowPolicy:
    torch.set_num_threads(1)
    return TinyFlowPolicy(SHAPES[request.param], rtc=RTCSettings())


@pytest.fixture(scope="module", params=[False, True], ids=["eager", "recorded"])
def make_engine(request, policy: TinyFlowPolicy) -> Callable[..., FlowEngine]:
    """Engines for so many sessions, whose memory holds NaN wherever nothing was written."""
    made = {}
    recorded = TinyFlowPolicy(policy.shape, rtc=policy.rtc, table=ON_THE_DEVICE)

    def make(sessions: int = 1) -> FlowEngine:
        engine = made.get(sessions)
        if engine is None:
            options = {"graphs": request.param, "record": record}
            engine = made[sessions] = FlowEngine(recorded if request.param else policy, sessions, 6, **options)
        engine.contract.watch = KeptSteps()
        engine.contract.stages.kv.data.fill_(torch.nan)
        engine.contract.state._lines.fill_(torch.nan)
        return engine

    return make


@pytest.mark.parametrize("shift", Shift)
def test_a_single_frame_follows_the_formulas(policy, make_engine, shift: Shift):
    frames = continuing(random_frames(policy.shape, 4), seed=1)
    run = OfflineRun(make_engine(), Scheduler(limits_for(policy.sizes.steps + 1, shift=shift)), [Mode.SERIAL])
    assert_right(run, run.decode([frames])[0], frames, FlowTwin(policy.shape, policy.weights))


@settings(max_examples=8, deadline=None)
@given(
    gaps=st.lists(st.integers(0, 7), min_size=1, max_size=8),
    depth=st.integers(1, 6),
    shift=st.sampled_from(Shift),
    seed=st.integers(0, 3),
)
def test_any_arrival_pattern(policy, make_engine, gaps: list[int], depth: int, shift: Shift, seed: int):
    check_arrivals(make_engine(), policy, gaps, depth, shift, seed)


@pytest.mark.parametrize("shift", Shift)
@pytest.mark.parametrize("budget", [1, 1 << 30], ids=["alone", "together"])
def test_robots_share_passes(policy, make_engine, shift: Shift, budget: int):
    check_robots(make_engine(3), policy, shift, budget)


def test_a_frame_that_is_not_finite_does_not_spoil_its_neighbours(policy, make_engine):
    frames = random_frames(policy.shape, 6, seed=2)
    bad = replace(frames[2], state=torch.full_like(frames[2].state, torch.nan))
    if not policy.sizes.state and not policy.sizes.closing:
        bad = replace(frames[2], noise=torch.full_like(frames[2].noise, torch.inf))
    run = OfflineRun(make_engine(), Scheduler(limits_for(policy.sizes.steps + 1)), [Mode.PIPELINED])
    results = run.decode([[*frames[:2], bad, *frames[3:]]])[0]
    assert [each.sampled.finite for each in results] == [True, True, False, True, True, True]
    others = [*results[:2], *results[3:]]
    assert_right(run, others, [*frames[:2], *frames[3:]], FlowTwin(policy.shape, policy.weights))


def test_the_actions_are_those_of_a_candidate(policy, make_engine):
    run = OfflineRun(engine := make_engine(), Scheduler(limits_for(policy.sizes.steps + 1)), [Mode.SERIAL])
    (result,) = run.decode([random_frames(policy.shape, 1)])[0]
    assert result.sampled.values.shape == (policy.sizes.candidates, policy.sizes.horizon, policy.sizes.dims)
    for candidate, values in enumerate(result.sampled.values):
        assert np.array_equal(engine.actions(result.sampled, None, candidate), values[:, :2] * 2.0)


@pytest.mark.parametrize(("attention", "reads"), [("slots_in_place", True), ("masked", False)])
def test_attention_that_reads_places_is_reported(attention: str, reads: bool):
    table = built_in_table().forcing(packed_attention=attention)
    assert TinyFlowPolicy(table=table).network.decoder.reads_places == reads


@pytest.mark.parametrize("prefix", [0, 3, 4])
def test_a_layout_of_only_suffix_rows(prefix: int):
    """Their numbers are aligned as those of whole layouts, and without a prefix they are the whole."""
    sizes = SHAPES["cross"].sizes
    begin = [PrefixSegment(slot=0, rows=prefix, ids=(1,))] if prefix else []
    rows = FlowLayouts(sizes, (JOINT, CROSS)).of(begin, [StepSegment(slot=1, prefix=5, step=2)])
    for kind in (JOINT, CROSS):
        whole, suffix = rows.layout.of_kind(kind), rows.layout.suffix(kind)
        assert (suffix is whole) == (not prefix)
        for name in ("row_slot", "row_position", "rope_position"):
            found = getattr(suffix, name)
            assert found.storage_offset() * found.element_size() % 16 == 0
            assert torch.equal(found, getattr(whole, name)[..., prefix:])


@pytest.mark.parametrize("step", [1, 3])
def test_a_clean_row_that_is_not_finite_at_any_step_is_reported(step: int):
    policy = TinyFlowPolicy(SHAPES["joint"])
    plain, calls = policy.network.velocity, count(1)

    def velocity(hidden: torch.Tensor) -> torch.Tensor:
        found = plain(hidden)
        if next(calls) == step:
            found[:, 0] = torch.nan  # the first row, which is clean
        return found

    policy.network.velocity = velocity
    frame = continuing(random_frames(policy.shape, 3), seed=1)[2]
    engine = FlowEngine(policy, 1, 6)
    run = OfflineRun(engine, Scheduler(limits_for(policy.sizes.steps + 1)), [Mode.SERIAL])
    assert frame.guidance.clean == 2
    assert not run.decode([[frame]])[0][0].sampled.finite
