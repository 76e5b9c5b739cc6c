"""The graphs of a model that decodes tokens: what a manifest may state of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edgeflow.artifacts.files import TokenForm
from edgeflow.artifacts.manifest import BOOL, INT, Graph, KVForm, Manifest, StageName, kv_specs, spec
from edgeflow_client.errors import CheckpointError

POSITIONS, ROWS = 8, 3
KV = KVForm(layers=1, kv_heads=1, head_dim=2, positions=POSITIONS)
FORM = TokenForm(layers=1, kv_heads=1, head_dim=2, width=4, vocabulary=5, images=(), chunks=True)
HIDDEN, LOGITS = spec("hidden", 1, ROWS, 4), spec("logits", 1, 5)


def graph(stage: StageName, rows: int, inputs: list, outputs: list, past: int = 0) -> Graph:
    return Graph(
        stage=stage,
        file=f"{stage.value}.onnx",
        digest="0",
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        rows=rows,
        past=past,
    )


def places(rows: int) -> list:
    return [spec("position", 1, rows, dtype=INT), spec("seen", 1, rows, POSITIONS + rows, dtype=BOOL)]


TOWERS = graph(StageName.TOWERS, ROWS, [spec("ids", 1, ROWS, dtype=INT)], [HIDDEN])
PREFILL = graph(
    StageName.PREFILL,
    ROWS,
    [HIDDEN, *places(ROWS), spec("sampled", 1, dtype=INT), *kv_specs(KV, 1, POSITIONS)],
    [LOGITS, *kv_specs(KV, 1, ROWS, "_rows")],
    past=POSITIONS,
)
STEP = graph(
    StageName.STEP,
    1,
    [spec("ids", 1, 1, dtype=INT), *places(1), *kv_specs(KV, 1, POSITIONS)],
    [LOGITS, *kv_specs(KV, 1, 1, "_rows")],
    past=POSITIONS,
)


def manifest(*graphs: Graph) -> Manifest:
    return Manifest(family="llama", fingerprint="0", text=ROWS, kv=KV, graphs=graphs, weights=())


def test_a_chat_model_has_a_row_for_each_token():
    assert FORM.fixed_rows(manifest(TOWERS, PREFILL, STEP)) == 0


@pytest.mark.parametrize("past", [0, POSITIONS - 1])
def test_a_prefill_that_states_another_past_than_it_reads(past: int):
    """The past says where in `seen` the rows begin."""
    with pytest.raises(CheckpointError, match=f"prefill.onnx has a past of {past} positions; expected {POSITIONS}"):
        FORM.fixed_rows(manifest(TOWERS, replace(PREFILL, past=past), STEP))
