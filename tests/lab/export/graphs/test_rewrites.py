"""Substitutions of operators: how many there are, and what they change."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from edgeflow.artifacts.manifest import StageName
from edgeflow.kernels.rope_write_kv import RotaryTable, rotated
from edgeflow.lab.export.graphs.graph_files import Traced, trace
from edgeflow.lab.export.graphs.rewrites import ATEN, masked, rewritten
from edgeflow.lab.export.graphs.stages import StageGraph
from edgeflow.lab.export.graphs.static import StaticLayout

ROWS, HEADS, WIDTH = 5, 3, 8
CLOSE = 1e-6


def stage_of(run, *inputs: Tensor) -> StageGraph:
    named = {f"in{index}": each for index, each in enumerate(inputs)}
    return StageGraph(stage=StageName.STEP, run=run, inputs=named, outputs=("out",), rows=ROWS)


def result(traced: Traced) -> Tensor:
    (out,) = traced.program.module()(*traced.stage.inputs.values())
    return out


def targets(traced: Traced) -> list[object]:
    return [node.target for node in traced.program.graph_module.graph.nodes]


@pytest.fixture
def x() -> Tensor:
    return torch.randn(ROWS, HEADS, WIDTH, generator=torch.Generator().manual_seed(0))


def turning(x: Tensor, position: Tensor) -> list[Tensor]:
    """Two rotations by the same sines."""
    table = RotaryTable.of(16, WIDTH, 100.0, x)
    layout = StaticLayout.over(position, torch.ones(1, ROWS, ROWS, dtype=torch.bool))
    rows = table.places(layout, 16)
    return [rotated(rotated(x, rows), rows)]


def test_rope_becomes_slices_a_negation_and_a_concatenation(x: Tensor):
    traced = trace(stage_of(turning, x, torch.tensor([[3, 1, 4, 1, 5]])))
    before = result(traced)
    assert ATEN.slice_scatter.default in targets(traced)
    assert rewritten(traced.program.graph_module, ("rope-concat",), None) == {"rope-concat": 2}
    assert ATEN.slice_scatter.default not in targets(traced)
    assert (result(traced) - before).abs().max() <= CLOSE * before.abs().max()


def test_other_writes_of_a_half_are_unchanged(x: Tensor):
    def other(x: Tensor, sin: Tensor) -> list[Tensor]:
        turned = x * 2
        turned[..., :4].addcmul_(x[..., 4:], sin)  # not the negative of what follows
        turned[..., 4:].addcmul_(x[..., :4], sin)
        return [turned]

    traced = trace(stage_of(other, x, torch.rand(ROWS, 1, 4)))
    before = result(traced)
    assert rewritten(traced.program.graph_module, ("rope-concat",), None) == {"rope-concat": 0}
    assert torch.equal(result(traced), before)


def test_gelu_by_erf(x: Tensor):
    def both(x: Tensor) -> list[Tensor]:
        return [torch.nn.functional.gelu(torch.nn.functional.gelu(x, approximate="tanh"))]

    traced = trace(stage_of(both, x))
    assert rewritten(traced.program.graph_module, ("erf-gelu",), None) == {"erf-gelu": 2}
    assert ATEN.gelu.default not in targets(traced)
    expected = torch.nn.functional.gelu(torch.nn.functional.gelu(x))
    assert (result(traced) - expected).abs().max() <= CLOSE


def test_a_finite_mask_is_the_constant(x: Tensor):
    def shown(x: Tensor) -> list[Tensor]:
        return [x.masked_fill(x > 0, float("-inf")).softmax(-1)]

    traced = trace(stage_of(shown, x))
    assert len(masked(traced.program.graph_module.graph)) == 1
    with pytest.raises(ValueError, match="needs its constant"):
        rewritten(traced.program.graph_module, ("finite-mask",), None)
    assert rewritten(traced.program.graph_module, ("finite-mask",), -3.0) == {"finite-mask": 1}
    assert (result(traced) - x.masked_fill(x > 0, -3.0).softmax(-1)).abs().max() <= CLOSE
    assert masked(traced.program.graph_module.graph) == []
