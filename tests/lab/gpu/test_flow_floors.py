"""The work of flow policies as their floors count it, against the operators that their engine runs."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from edgeflow.engine.control.engine import FlowEngine
from edgeflow.engine.policy import Placement
from edgeflow.kernels.table.operator_table import built_in_table
from edgeflow.lab.gpu.sections.flow_speed import flow_passes
from edgeflow.lab.gpu.subjects.flow_floors import prefix_work, stacks, step_work
from edgeflow.lab.gpu.subjects.random_flow import PUBLISHED, TINY, FlowShape
from edgeflow.lab.verify.policies.flow.recorded_runs import NetworkAlone, frame_shape
from edgeflow_client.types import Mode

CPU = torch.device("cpu")


def packed_flops(x: tuple[int, ...], weight: tuple[int, ...], *_: Any, **__: Any) -> int:
    """FLOPs of oneDNN's linear."""
    return 2 * math.prod(x) * weight[0]


def attention_flops(q: tuple[int, ...], k: tuple[int, ...], *_: Any, **__: Any) -> int:
    """FLOPs of torch's attention on a CPU."""
    return 4 * math.prod(q) * k[2]


UNKNOWN = {
    torch.ops.mkldnn._linear_pointwise: packed_flops,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: attention_flops,
}
"""Operators that the counter does not know."""


def counted(shape: FlowShape) -> tuple[float, float]:
    """FLOPs of a prefix's pass and of a step's."""
    network, frames = shape.network(Placement(dtype=torch.float32, device=CPU, table=built_in_table())), shape.frames(1)
    shapes: Any = {"fixed_rows": shape.prefix, "frame_shape": frame_shape(frames[0])}
    policy: Any = NetworkAlone(sizes=shape.sizes, network=network, **shapes)
    engine = FlowEngine(policy, 1, 0)
    counter = FlopCounterMode(display=False, custom_mapping=UNKNOWN)
    totals = []
    with counter:
        for _ in flow_passes(engine, 1, [frames], Mode.SERIAL, 0):
            totals.append(counter.get_total_flops())
    return totals[0], totals[1] - totals[0]


@pytest.mark.parametrize("shape", TINY, ids=lambda shape: shape.name)
def test_floors_count_the_work_that_is_done(shape):
    """Left out: embeddings of time, action and state, projections of a prefix's keys, and what masks hide."""
    prefix, step = counted(shape)
    assert 0.95 * prefix < prefix_work(shape).flops <= prefix
    assert 0.75 * step < step_work(shape).flops <= step


def test_published_shapes_have_their_weights():
    """Parameters of the stacks in millions: SmolLM2 cut to 16 layers, Gemma 2B, and the experts."""
    millions = {shape.name: [step_like(stack) / 1e6 for stack in stacks(shape)] for shape in PUBLISHED}
    assert millions["SmolVLA"] == pytest.approx([157, 100], rel=0.01)
    assert millions["π0"] == millions["π0.5"] == pytest.approx([1981, 311], rel=0.01)


def step_like(stack: Any) -> int:
    width = stack.heads * stack.head_dim
    return stack.depth * stack.width * (2 * width + 2 * stack.kv_heads * stack.head_dim + 3 * stack.inner)
