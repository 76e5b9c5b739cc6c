"""Quantised graphs: QuantizeLinear and DequantizeLinear around the operators of a float graph, by onnxruntime's tool.

Symmetric throughout, zero points are 0. Weights of products: per output channel. Activations, and other constants that
operators of OPERATORS read: per tensor, from the largest magnitude over the calibration inputs; of a softmax, 1. Inputs
and outputs of graphs, keys and values included, are float32: the first operator quantises them. These stay float32:

- biases of Gemm. In INT16 the usual int32 at the scale of the accumulator overflows;
- tables that are gathered from: embeddings, rotations. What is gathered is quantised;
- the statistics of norms, from the square to the reciprocal of the root: their range is that of variances;
- the number that stands for hidden scores.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from edgeflow.lab.export.graphs.graph_files import with_shapes
from edgeflow.lab.export.quantised.stage_runs import session_of
from edgeflow.lab.export.request import ACTIVATIONS, WEIGHTS, Precision
from edgeflow.lab.progress import Report
from edgeflow_client.errors import ConfigError

PRODUCTS = ("MatMul", "Gemm")
ELEMENTWISE = ("Add", "Mul", "Sub", "Neg", "Where", "Softmax", "Sigmoid", "Gelu", "Erf", "Concat")
MOVES = ("Transpose", "Reshape", "Slice", "Split", "Squeeze", "Unsqueeze")
"""Operators whose results have the scale of their input."""
OPERATORS = (*PRODUCTS, *ELEMENTWISE, *MOVES)
STATISTICS = ("Pow", "ReduceMean", "Sqrt", "Reciprocal")
LOWEST, HIGHEST = "lowest", "highest"


def quantise(
    model: ir.Model, calibration: Sequence[Mapping[str, NDArray[Any]]], precision: Precision, report: Report
) -> ir.Model:
    """The graph in a precision; the model itself for FLOAT32.

    calibration: inputs of this graph. ConfigError if scores are hidden by minus infinity, without calibration inputs,
    or for ranges that are not finite.
    """
    if precision is Precision.FLOAT32:
        return model
    if not calibration:
        raise ConfigError("calibration: has no inputs of this graph; at least one is needed")
    _refuse_infinite(model)
    ranges = float_ranges(model, calibration, report)
    for name, each in ranges.items():
        if not (math.isfinite(each.lowest) and math.isfinite(each.highest)):
            raise ConfigError(
                f"calibration: {name} has values from {each.lowest} to {each.highest}; they must be finite"
            )
    found: ir.Model = ir.from_proto(_quantised(ir.to_proto(model), ranges, precision))
    found.producer_name = model.producer_name
    return with_shapes(found)


def _quantised(proto: onnx.ModelProto, ranges: Mapping[str, Range], precision: Precision) -> onnx.ModelProto:
    from onnxruntime.quantization import CalibrationMethod, QuantType
    from onnxruntime.quantization.calibrate import TensorsData
    from onnxruntime.quantization.qdq_quantizer import QDQQuantizer

    kinds = {8: QuantType.QInt8, 16: QuantType.QInt16}
    extrema = {name: (np.float32(each.lowest), np.float32(each.highest)) for name, each in ranges.items()}
    quantizer = QDQQuantizer(
        proto,
        per_channel=True,
        reduce_range=False,
        weight_qType=kinds[WEIGHTS[precision]],
        activation_qType=kinds[ACTIVATIONS[precision]],
        tensors_range=TensorsData(CalibrationMethod.MinMax, extrema),
        nodes_to_quantize=[],
        nodes_to_exclude=_statistics(proto.graph),
        op_types_to_quantize=list(OPERATORS),
        extra_options={
            "ActivationSymmetric": True,
            "WeightSymmetric": True,
            "QuantizeBias": False,
            "UseQDQContribOps": False,
        },
    )
    quantizer.quantize_model()
    found: onnx.ModelProto = quantizer.model.model
    return found


def _statistics(graph: onnx.GraphProto) -> list[str]:
    """The nodes that compute norms: statistics, additions to a mean, and products with a reciprocal."""
    maker = {name: node.op_type for node in graph.node for name in node.output}
    kept = []
    for node in graph.node:
        makers = {maker.get(name) for name in node.input}
        behind = (node.op_type, "ReduceMean") in (("Add", each) for each in makers) or (
            node.op_type in ("Mul", "Sub") and bool(makers & {"Reciprocal", "ReduceMean"})
        )
        if node.op_type in STATISTICS or behind:
            kept.append(node.name)
    return kept


def _refuse_infinite(model: ir.Model) -> None:
    for value in model.graph.initializers.values():
        tensor = value.const_value
        if tensor is not None and tensor.size == 1 and tensor.dtype is ir.DataType.FLOAT and np.isinf(tensor.numpy()):
            raise ConfigError(
                f"precision: {value.name} is minus infinity, which leaves no scale for scores: export with the rewrite "
                "finite-mask"
            )


@dataclass(frozen=True, slots=True)
class Range:
    """The range of a tensor's values."""

    lowest: float
    highest: float
    """Both: over all elements."""


def float_ranges(
    model: ir.Model, calibration: Sequence[Mapping[str, NDArray[Any]]], report: Report
) -> dict[str, Range]:
    """The range of every float32 tensor that is an input or a result of a node, by name.

    The graph computes its own extrema, so that only these are copied out of it. The model is unchanged.
    """
    names = [str(value.name) for value in _floats(model)]
    lowest, highest = np.full(len(names), np.inf), np.full(len(names), -np.inf)
    session = session_of(_watched(model))
    for done, inputs in enumerate(calibration):
        low, high = session.run([LOWEST, HIGHEST], dict(inputs))
        lowest, highest = np.minimum(lowest, low), np.maximum(highest, high)
        report("calibrated inputs", done + 1, len(calibration))
    return {name: Range(float(low), float(high)) for name, low, high in zip(names, lowest, highest, strict=True)}


def _floats(model: ir.Model) -> list[ir.Value]:
    values = [*model.graph.inputs, *(value for node in model.graph for value in node.outputs)]
    return [value for value in values if value.dtype is ir.DataType.FLOAT]


def _watched(model: ir.Model) -> ir.Model:
    """A copy of the model that outputs the extrema of its float tensors, in their order [n]."""
    watched = model.clone()
    graph, floats = watched.graph, _floats(watched)
    whole = ir.Value(name="watched.shape", const_value=ir.tensor(np.array([1]), name="watched.shape"))
    graph.register_initializer(whole)
    outputs = []
    for name, op in ((LOWEST, "ReduceMin"), (HIGHEST, "ReduceMax")):
        extrema = []
        for value in floats:
            found = ir.node(op, [value], attributes={"keepdims": 0})
            flat = ir.node("Reshape", [found.outputs[0], whole])
            graph.extend([found, flat])
            extrema.append(flat.outputs[0])
        joined = ir.node("Concat", extrema, attributes={"axis": 0})
        output = joined.outputs[0]
        output.name, output.dtype, output.shape = name, ir.DataType.FLOAT, ir.Shape([len(floats)])
        graph.append(joined)
        outputs.append(output)
    graph.outputs.clear()
    graph.outputs.extend(outputs)
    return watched
