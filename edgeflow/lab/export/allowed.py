"""The operators that exported graphs may have: static, standard ones, without control flow."""

from __future__ import annotations

import onnx_ir as ir

from edgeflow.lab.export.graphs.graph_files import OPSET
from edgeflow_client.errors import CheckpointError

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


def check_operators(model: ir.Model, name: str) -> None:
    """CheckpointError for an operator that is not allowed, another domain or opset, or a shape that is not fixed."""
    domains = {domain: version for domain, version in model.opset_imports.items() if domain not in ("", "ai.onnx")}
    if domains or model.opset_imports.get("") != OPSET or model.functions:
        raise CheckpointError(f"{name}: operators of {dict(model.opset_imports)}; exported: opset {OPSET} alone")
    for node in model.graph.all_nodes():
        if node.op_type not in ALLOWED or node.domain not in ("", "ai.onnx"):
            raise CheckpointError(f"{name}: the operator {node.op_type} is not one of a static graph")
        for value in node.outputs:
            if value.shape is None or not value.shape.is_static():
                raise CheckpointError(f"{name}: {node.op_type} gives {value.name} without a fixed shape")
