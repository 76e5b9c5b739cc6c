"""The number for hidden scores: low enough for 16 bits of softmax, and no lower than that needs."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from edgeflow.artifacts.manifest import StageName
from edgeflow.lab.export.graphs.graph_files import Traced, to_onnx, trace
from edgeflow.lab.export.graphs.rewrites import rewritten
from edgeflow.lab.export.graphs.stages import StageGraph
from edgeflow.lab.export.quantised.masks import calibrate_mask, margin
from edgeflow.lab.export.quantised.qdq import quantise
from edgeflow.lab.export.quantised.stage_runs import session_of
from edgeflow.lab.export.request import Precision
from tests.lab.export.quantised.tiny_step import quiet

ROWS, KEYS, WIDTH = 6, 16, 8


def attention(q: Tensor, k: Tensor, seen: Tensor) -> list[Tensor]:
    """Weights [1, R, n] of an attention."""
    return [(q @ k.transpose(1, 2)).masked_fill(~seen, float("-inf")).softmax(-1)]


def stage() -> StageGraph:
    shapes = {"q": (1, ROWS, WIDTH), "k": (1, KEYS, WIDTH)}
    inputs = {name: torch.zeros(shape) for name, shape in shapes.items()}
    inputs["seen"] = torch.ones(1, ROWS, KEYS, dtype=torch.bool)
    return StageGraph(stage=StageName.STEP, run=attention, inputs=inputs, outputs=("weights",), rows=ROWS)


@pytest.fixture(scope="module")
def inputs() -> list[dict[str, np.ndarray]]:
    generator, found = np.random.default_rng(3), []
    for _ in range(5):
        seen = generator.random((1, ROWS, KEYS)) < 0.5
        seen[..., 0] = True
        q, k = (generator.standard_normal((1, rows, WIDTH), np.float32) for rows in (ROWS, KEYS))
        found.append({"q": q, "k": k, "seen": seen})
    return found


@pytest.fixture(scope="module")
def traced() -> Traced:
    return trace(stage())


def naive_lowest(inputs) -> float:
    """The lowest of the rows' largest visible scores, row by row."""
    rows = []
    for each in inputs:
        scores = each["q"][0].astype(np.float64) @ each["k"][0].T
        rows += [max(score[row_seen]) for score, row_seen in zip(scores, each["seen"][0], strict=True)]
    return min(rows)


@pytest.mark.parametrize("precision", [Precision.INT16, Precision.W8A8])
def test_the_number_is_the_margin_below_the_lowest_of_the_largest_visible_scores(traced, inputs, precision):
    bits = 16 if precision is Precision.INT16 else 8
    wanted = naive_lowest(inputs) - math.log(2 ** (bits + 1) * KEYS)
    assert calibrate_mask(traced, inputs, precision) == pytest.approx(wanted, abs=1e-5)


def test_a_graph_that_hides_nothing_has_no_number():
    bare = stage()
    bare = StageGraph(
        stage=bare.stage,
        run=lambda q, k, seen: [(q @ k.transpose(1, 2)).softmax(-1) * seen],
        inputs=bare.inputs,
        outputs=bare.outputs,
        rows=ROWS,
    )
    example = {name: value.numpy() for name, value in bare.inputs.items()}
    assert calibrate_mask(trace(bare), [example]) == math.inf


def test_hidden_keys_have_no_weight_at_16_bits_but_would_have_above_the_number(inputs):
    constant = calibrate_mask(trace(stage()), inputs)
    weighed = []
    for number in (constant, constant + margin(KEYS, 16) - 1.0):
        changed = trace(stage())
        rewritten(changed.program.graph_module, ("finite-mask",), number)
        session = session_of(quantise(to_onnx(changed), inputs, Precision.INT16, quiet))
        weighed.append(max(float(session.run(None, each)[0][~each["seen"]].max()) for each in inputs))
    assert weighed[0] == 0.0
    assert weighed[1] > 0.0
