"""Ranges of the tensors of a graph over calibration inputs: running minima and maxima, one input at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from edgeflow.lab.export.quantised.sessions import session_of
from edgeflow.lab.progress import Report

LOWEST, HIGHEST = "lowest", "highest"


@dataclass(frozen=True, slots=True)
class Range:
    """lowest, highest: of all elements."""

    lowest: float
    highest: float


def float_ranges(
    model: ir.Model, calibration: Sequence[Mapping[str, NDArray[Any]]], report: Report
) -> dict[str, Range]:
    """The range of every float32 tensor that is an input or a result of a node, by name.

    The graph computes its own extrema, so that no tensor leaves it. The model is unchanged.
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
    """A copy of the model whose outputs are the extrema of its float tensors, in their order [n]."""
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
