"""The check of a graph beside the networks that it was traced from."""

from __future__ import annotations

import math
from pathlib import Path

import onnx_ir as ir
import pytest
import torch

from edgeflow.artifacts.manifest import StageName
from edgeflow.lab.export.checking import error_of
from edgeflow.lab.export.graphs.graph_files import to_onnx, trace
from edgeflow.lab.export.graphs.stages import StageGraph


def stage(scale: float) -> StageGraph:
    return StageGraph(
        stage=StageName.STEP,
        run=lambda x: [2 * x, (x * x * scale).sqrt()],
        inputs={"x": torch.zeros(2, 3)},
        outputs=("double", "root"),
        rows=1,
    )


@pytest.mark.parametrize(("scale", "finite"), [(1.0, True), (-1.0, False)])
def test_every_output_counts(tmp_path: Path, scale: float, finite: bool):
    """Also where it is not a number after one that is exact."""
    made = stage(scale)
    ir.save(to_onnx(trace(made)), tmp_path / "step.onnx")
    error = error_of(tmp_path / "step.onnx", made)
    assert math.isfinite(error) == finite
    assert not finite or error < 1e-6
