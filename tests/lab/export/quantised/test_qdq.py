"""Quantised graphs against the naive computation of their scales, and their errors on a tiny denoising step."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from edgeflow.artifacts.manifest import StageName
from edgeflow.lab.export.checking import check_operators
from edgeflow.lab.export.graphs.graph_files import to_onnx, trace
from edgeflow.lab.export.graphs.rewrites import rewritten
from edgeflow.lab.export.quantised.masks import calibrate_mask
from edgeflow.lab.export.quantised.qdq import STATISTICS, float_ranges, quantise
from edgeflow.lab.export.quantised.stage_inputs import record_stage_inputs
from edgeflow.lab.export.quantised.stage_runs import StageKey, session_of, stage_key
from edgeflow.lab.export.request import Precision
from edgeflow_client.errors import ConfigError
from tests.engine.flow.tiny_flow import random_frames
from tests.lab.export.quantised.tiny_step import SHAPE, naive_extrema, program_of, quiet

MOST = {Precision.INT16: 3e-4, Precision.W8A16: 1.2e-2, Precision.W8A8: 6e-2}
"""Relative errors of the velocity over all inputs."""
SAME = {Precision.INT16: 1e-4, Precision.W8A16: 1e-4, Precision.W8A8: 1e-2}
"""A last bit that rounds otherwise is a step of the next tensor."""
FINEST = {Precision.INT16: 32767, Precision.W8A16: 32767, Precision.W8A8: 127}
CLOSE = 1e-6
STEP = StageKey(StageName.STEP, SHAPE.sizes.rows, 1)


class StepGraph:
    """The graph of a step. infinite: with minus infinity for hidden scores. model: with a finite number. inputs, first:
    recorded over all steps, and in the first."""

    def __init__(self) -> None:
        program, frames = program_of(), random_frames(SHAPE, 6)
        self.inputs, self.first = (record_stage_inputs(program, frames, steps)[STEP] for steps in ("all", "first"))
        traced = trace(next(stage for stage in program.stages if stage_key(stage) == STEP))
        constant = calibrate_mask(traced, self.inputs)
        self.infinite = to_onnx(traced)
        rewritten(traced.program.graph_module, ("rope-concat", "finite-mask"), constant)
        self.model = to_onnx(traced)
        self.quantised = {each: quantise(self.model, self.inputs, each, quiet) for each in MOST}

    def velocities(self, model: ir.Model) -> np.ndarray:
        session = session_of(model)
        return np.stack([session.run(None, each)[0] for each in self.inputs])

    def error(self, model: ir.Model) -> float:
        wanted = self.velocities(self.model)
        return float(np.linalg.norm(self.velocities(model) - wanted) / np.linalg.norm(wanted))


@pytest.fixture(scope="module")
def step() -> StepGraph:
    return StepGraph()


def constant(model: ir.Model, value: ir.Value | None) -> np.ndarray:
    assert value is not None
    return model.graph.initializers[value.name].const_value.numpy()


def test_ranges_are_those_of_all_values_at_once_and_hold_the_first_steps(step: StepGraph):
    found = float_ranges(step.model, step.inputs, quiet)
    naive = naive_extrema(step.model, step.inputs)
    computed = {str(value.name) for node in step.model.graph for value in node.outputs}
    assert computed & set(naive) <= set(found)
    for name in computed & set(naive):
        low, high = naive[name]
        scale = max(abs(low), abs(high), CLOSE)
        assert abs(found[name].lowest - low) <= 1e-4 * scale
        assert abs(found[name].highest - high) <= 1e-4 * scale
    first = float_ranges(step.model, step.first, quiet)
    assert all(found[name].lowest <= each.lowest <= each.highest <= found[name].highest for name, each in first.items())
    assert found["x"] != first["x"]


@pytest.mark.parametrize("precision", MOST)
def test_scales_of_activations_are_the_largest_magnitude_in_steps(step: StepGraph, precision: Precision):
    """A move has the scale of what it moves; the range of a softmax is 0 to 1."""
    model, naive = step.quantised[precision], naive_extrema(step.model, step.inputs)
    naive |= {name: _extrema([each[name] for each in step.inputs]) for name in ("x", "state", "key.0", "value.0")}
    naive["softmax"] = (0.0, 1.0)
    kind, seen = np.int8 if FINEST[precision] == 127 else np.int16, set()
    for node in model.graph:
        if node.op_type == "QuantizeLinear":
            scale, point = (constant(model, value) for value in node.inputs[1:])
            assert scale.shape == () and point == 0 and point.dtype == kind
            name = str(node.inputs[1].name).removesuffix("_scale")
            assert float(scale) == pytest.approx(max(map(abs, naive[name])) / FINEST[precision], rel=1e-4)
            seen.add(name)
    assert {"x", "state", "key.0", "value.0", "velocity", "softmax", "masked_fill"} <= seen


def _extrema(values: list[np.ndarray]) -> tuple[float, float]:
    return min(float(each.min()) for each in values), max(float(each.max()) for each in values)


@pytest.mark.parametrize("precision", MOST)
def test_weights_have_a_scale_for_every_output_channel(step: StepGraph, precision: Precision):
    model, most = step.quantised[precision], 32767 if precision is Precision.INT16 else 127
    products = 0
    for node in model.graph:
        if node.op_type not in ("Gemm", "MatMul"):
            continue
        made = node.inputs[1].producer()
        assert made is not None and made.op_type == "DequantizeLinear"
        if made.inputs[0].name not in model.graph.initializers:
            continue  # a product of activations
        products += 1
        axis = 0 if node.op_type == "Gemm" and node.attributes["transB"].as_int() else 1
        assert made.attributes["axis"].as_int() == axis
        codes, scale = constant(model, made.inputs[0]), constant(model, made.inputs[1])
        weight = step.model.graph.initializers[made.inputs[0].name.removesuffix("_quantized")].const_value.numpy()
        largest = np.abs(weight).max(axis=1 - axis)
        assert np.allclose(scale, largest / most, rtol=1e-5)
        shown = scale[:, None] if axis == 0 else scale
        assert np.abs(codes * shown - weight).max() <= 0.5001 * scale.max()
        assert (np.abs(codes).max(axis=1 - axis) == most).all()
    assert products == 7


def test_only_scales_are_added_and_the_boundary_stays_float(step: StepGraph):
    before = Counter(node.op_type for node in step.model.graph)
    for model in step.quantised.values():
        check_operators(model, "step.onnx")
        onnx.checker.check_model(ir.to_proto(model))
        after = Counter(node.op_type for node in model.graph)
        assert set(after) - set(before) == {"QuantizeLinear", "DequantizeLinear"}
        assert {name: after[name] for name in before} == before
        for old, new in zip(
            [*step.model.graph.inputs, *step.model.graph.outputs],
            [*model.graph.inputs, *model.graph.outputs],
            strict=True,
        ):
            assert (old.name, old.dtype, old.shape) == (new.name, new.dtype, new.shape)
        statistics = [node for node in model.graph if node.op_type in STATISTICS]
        readers = {use.node.op_type for node in statistics for use in node.outputs[0].uses()}
        assert statistics and "QuantizeLinear" not in readers


@pytest.mark.parametrize("precision", MOST)
def test_errors_are_proportional_to_the_quantisation_steps(step: StepGraph, precision: Precision):
    assert 0 < step.error(step.quantised[precision]) <= MOST[precision]


@pytest.mark.parametrize("precision", MOST)
def test_sessions_compute_what_graphs_say(step: StepGraph, precision: Precision):
    """Optimised, as they are served, and without any optimisation."""
    model = step.quantised[precision]
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    plain = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString(), options)
    wanted = np.stack([plain.run(None, each)[0] for each in step.inputs])
    found = step.velocities(model)
    assert np.linalg.norm(found - wanted) <= SAME[precision] * np.linalg.norm(wanted)


@pytest.mark.parametrize("name", ["softmax_scale", "linear_scale", "key.0_scale"])
def test_one_wrong_scale_breaks_the_bound_of_16_bits(step: StepGraph, name: str):
    broken = step.quantised[Precision.INT16].clone()
    value = broken.graph.initializers[name]
    value.const_value = ir.tensor(value.const_value.numpy() * np.float32(0.5), name=name)
    assert step.error(broken) > 10 * MOST[Precision.INT16]


def test_floats_are_unchanged_and_minus_infinity_is_rejected(step: StepGraph):
    assert quantise(step.model, [], Precision.FLOAT32, quiet) is step.model
    with pytest.raises(ConfigError, match="minus infinity, which leaves no scale for scores"):
        quantise(step.infinite, step.inputs, Precision.INT16, quiet)
    with pytest.raises(ConfigError, match="has no inputs of this graph"):
        quantise(step.model, [], Precision.INT16, quiet)
    spoilt = {**step.inputs[0], "x": np.full_like(step.inputs[0]["x"], np.inf)}
    with pytest.raises(ConfigError, match="they must be finite"):
        quantise(step.model, [spoilt], Precision.INT16, quiet)
