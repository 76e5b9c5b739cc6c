"""Checks of a graph: ONNX Runtime's outputs compared with those of the traced networks, and the graph's operators.

Only static, standard operators are allowed, and no control flow.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgeflow.artifacts.sessions import CPU_PROVIDER, Runtime, session_options
from edgeflow.lab.export.graphs.graph_files import OPSET
from edgeflow.lab.export.graphs.stages import StageGraph
from edgeflow_client.errors import CheckpointError

CLOSE = 1e-4
"""Largest error allowed for a graph of floats without substitutions."""
ARITHMETIC = ("Add", "Div", "Mul", "Neg", "Pow", "Reciprocal", "Sqrt", "Sub", "Sin", "Cos", "Tanh", "Erf")
PRODUCTS = ("Gemm", "MatMul")
NONLINEAR = ("Gelu", "LayerNormalization", "Sigmoid", "Softmax")
REDUCTIONS = ("ReduceMean", "ReduceSum")
SHAPES = ("Cast", "Concat", "Expand", "Flatten", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze")
BY_INDEX = ("Gather", "GatherND", "ScatterND")
MASKS = ("And", "Equal", "Less", "Not", "Where")
CONSTANTS = ("Constant", "ConstantOfShape")
SCALES = ("DequantizeLinear", "QuantizeLinear")
ALLOWED = frozenset((*ARITHMETIC, *PRODUCTS, *NONLINEAR, *REDUCTIONS, *SHAPES, *BY_INDEX, *MASKS, *CONSTANTS, *SCALES))


def error_of(path: Path, stage: StageGraph, given: Mapping[str, NDArray[Any]] | None = None) -> float:
    """The largest difference of an output, relative to the largest number of that output.

    given: the inputs; None for random floats, with the masks and positions of the example.
    """
    inputs = random_inputs(stage) if given is None else {name: torch.from_numpy(given[name]) for name in stage.inputs}
    with torch.no_grad():
        expected = stage.run(*inputs.values())
    options = session_options(Runtime(threads=torch.get_num_threads()))
    session = onnxruntime.InferenceSession(str(path), options, providers=[CPU_PROVIDER])
    found = session.run(list(stage.outputs), {name: value.numpy() for name, value in inputs.items()})
    errors = [_error(each.numpy(), other) for each, other in zip(expected, found, strict=True)]
    return float(np.max(errors))  # not finite where only one of the two is not


def random_inputs(stage: StageGraph) -> dict[str, Tensor]:
    """The example inputs of a stage with random floats, the same in every call."""
    generator = torch.Generator().manual_seed(0)
    return {
        name: torch.randn(value.shape, generator=generator) if value.is_floating_point() else value
        for name, value in stage.inputs.items()
    }


def check_error(error: float, file: str) -> None:
    """Raise CheckpointError for a graph of floats whose outputs are not those of its networks."""
    if not error <= CLOSE:
        raise CheckpointError(
            f"{file} differs from the model by {error:.1e} of its largest output, more than {CLOSE:g}: "
            "this version of torch, onnxscript or onnxruntime is not supported by the export"
        )


def _error(expected: np.ndarray, found: np.ndarray) -> float:
    scale = float(np.abs(expected).max(initial=0.0)) or 1.0
    return float(np.abs(expected - found).max(initial=0.0)) / scale


def check_operators(model: ir.Model, name: str) -> None:
    """Raise CheckpointError for an operator, domain or opset that is not allowed, or a shape that is not fixed."""
    domains = {domain: version for domain, version in model.opset_imports.items() if domain not in ("", "ai.onnx")}
    if domains or model.opset_imports.get("") != OPSET or model.functions:
        raise CheckpointError(f"{name}: operators of {dict(model.opset_imports)}; only opset {OPSET} can be exported")
    for node in model.graph.all_nodes():
        if node.op_type not in ALLOWED or node.domain not in ("", "ai.onnx"):
            raise CheckpointError(f"{name}: the operator {node.op_type} is not allowed in a static graph")
        for value in node.outputs:
            if value.shape is None or not value.shape.is_static():
                raise CheckpointError(f"{name}: {node.op_type} returns {value.name} without a fixed shape")
