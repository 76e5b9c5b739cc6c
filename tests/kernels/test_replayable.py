"""What says that a graph may hold it, can be held; where passes are replayed, the tuner takes nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from edgeflow.kernels.kv.layout import Span
from edgeflow.kernels.kv.visibility import causal
from edgeflow.kernels.table.built_in import BUILT_IN
from edgeflow.kernels.table.implementations import Hardware, Implementation
from edgeflow.kernels.table.operator_table import OperatorKey, built_in_table
from edgeflow.lab.trials import cases
from edgeflow.lab.trials.cases import Heads, TrialCase
from edgeflow.lab.trials.tune import Tuner
from edgeflow.lab.trials.visibility import tree_of_drafts, window
from edgeflow_client.errors import ConfigError

CPU = torch.device("cpu")
SPANS = [Span(0, 4, 1), Span(1, 0, 3)]
CASES = {
    "causal": cases.packed_attention(SPANS, Heads(4, 2, 16)),
    "window": cases.packed_attention(SPANS, Heads(4, 2, 16), 1, [window(span, 2, 1) for span in SPANS]),
    "tree": cases.packed_attention(SPANS, Heads(4, 2, 16), 1, [causal(SPANS[0]), tree_of_drafts(SPANS[1], (-1, 0, 0))]),
}
ATTENTION = [each for each in BUILT_IN if each.op_name == "packed_attention" and each.takes("dense")]
HERE = [each for each in ATTENTION if not each.objection(Hardware.of(CPU), torch.float32)]


def reads_places(implementation: Implementation, case: TrialCase) -> bool:
    """True when it asks for slots, positions or ranges that only the device knows when a graph is made."""
    problem = case.problem(torch.device("meta"), torch.float32)
    layout, kv = problem.arguments
    try:
        problem.outputs(implementation.load()(replace(layout, places=None), kv))
    except (ConfigError, NotImplementedError, RuntimeError):  # the last two: of numbers that lie nowhere
        return True
    return False


@pytest.mark.parametrize("implementation", HERE, ids=lambda each: each.impl_id)
@pytest.mark.parametrize("name", CASES)
def test_attention_is_replayable_where_the_host_reads_no_place(implementation: Implementation, name: str):
    assert implementation.replayable is not reads_places(implementation, CASES[name])


def test_on_a_gpu_the_tuner_takes_what_graphs_may_hold(monkeypatch):
    monkeypatch.setattr(Hardware, "of", lambda _: Hardware.named("cuda_sm90"))
    monkeypatch.setattr(Implementation, "objection", lambda *_: "")
    key = OperatorKey(op_name="packed_attention", kv="dense")
    taken = {
        device: {
            each.impl_id
            for each in Tuner(
                table=built_in_table(), model_name="llama", device=torch.device(device), dtype=torch.bfloat16
            )._candidates([key])
        }
        for device in ("cpu", "cuda")
    }
    assert taken["cuda"] == {"masked", "triton", "flashinfer"}
    assert taken["cpu"] - taken["cuda"] == {"naive_gather", "slots_in_place", "flashinfer_mixed"}
