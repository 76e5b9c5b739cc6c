"""A denoising step of a tiny flow policy of one layer, and its recorded inputs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator

from edgeflow.engine.flow.frames import FlowSizes
from edgeflow.lab.export.graphs.stages import ModelProgram
from edgeflow.models.grouped import JOINT
from tests.engine.flow.tiny_flow import STATE, Shape
from tests.lab.export.graphs import flow_stages as stages

SHAPE = Shape(sizes=FlowSizes(steps=4, horizon=5, dims=3, lead=1, causal=True, state=STATE), kinds=(JOINT,))
TEXT = stages.TEXT
BATCHES = (1, 2)


def program_of(shape: Shape = SHAPE) -> ModelProgram:
    return stages.program_of(stages.policy_of(shape), *BATCHES)


def quiet(_step: str, _done: int, _count: int) -> None:
    """Progress that nobody reads."""


def naive_values(proto: onnx.ModelProto, inputs: Mapping[str, NDArray]) -> dict[str, NDArray]:
    """Every value of a graph on these inputs, by ONNX's reference evaluator."""
    found = ReferenceEvaluator(proto).run(None, dict(inputs), intermediate=True)
    return {name: np.asarray(value) for name, value in found.items() if name}


def naive_extrema(model: ir.Model, calibration: list[dict[str, NDArray]]) -> dict[str, tuple[float, float]]:
    """The least and the greatest element of every float value over all inputs at once."""
    proto, found = ir.to_proto(model), {}
    for inputs in calibration:
        for name, value in naive_values(proto, inputs).items():
            if value.dtype == np.float32:
                low, high = found.get(name, (np.inf, -np.inf))
                found[name] = min(low, float(value.min())), max(high, float(value.max()))
    return found
