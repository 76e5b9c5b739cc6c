"""Stages of fixed shapes against the formulas of a flow policy, for frames that do not fill their bucket."""

from __future__ import annotations

import pytest

from tests.engine.flow.tiny_flow import SHAPES, random_frames
from tests.engine.flow.twin import FlowTwin
from tests.lab.export.graphs.flow_stages import denoised, policy_of, program_of

TOLERANCE = 1e-5


@pytest.mark.parametrize("name", SHAPES)
def test_the_stages_compute_the_formulas(name: str):
    policy = policy_of(SHAPES[name])
    program, twin = program_of(policy), FlowTwin(policy.shape, policy.weights)
    for frame in random_frames(policy.shape, 4, seed=3):
        for found, wanted in zip(denoised(program, policy.sizes, frame), twin.steps(frame), strict=True):
            assert (found.double() - wanted).abs().max() <= TOLERANCE * max(1.0, wanted.abs().max())


def test_a_step_returns_a_velocity_and_a_prefill_rows_of_every_layer():
    policy = policy_of(SHAPES["cross"])
    program = program_of(policy)
    *_, prefill, step = program.stages
    layers = len(policy.shape.kinds)
    assert prefill.outputs == tuple(f"{kind}_rows.{index}" for index in range(layers) for kind in ("key", "value"))
    assert step.outputs == ("velocity",)
    assert program.kv.positions == prefill.rows == step.past
