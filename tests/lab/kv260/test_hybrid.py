"""The decoder with its linears on the accelerator's model: the tokens of the references, in float32."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from edgeflow.kernels.awq import AWQ
from edgeflow.kernels.table.dimensions import STAGES
from edgeflow.kernels.table.implementations import Hardware
from edgeflow.kernels.table.operator_table import OperatorKey, built_in_table
from edgeflow.lab.kv260.hybrid import (
    ACCELERATED,
    BACKENDS,
    CPU,
    EXACT,
    AcceleratedProduct,
    ExactProduct,
    compare_run,
    greedy,
    hybrid_table,
    load_hybrid,
)
from edgeflow.lab.kv260.macro_file import write_macro
from edgeflow_client.errors import CheckpointError, ConfigError
from tests.kernels.awq_weights import random_weight
from tests.lab.kv260.checkpoint import write_awq_checkpoint
from tests.oracles import oracle

AWQ_BUNDLES = ("awq-tiny", "awq-chat-g64", "awq-stories-g64")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_awq_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.mark.parametrize("bundle", [pytest.param(name, marks=pytest.mark.oracle(name)) for name in AWQ_BUNDLES])
@pytest.mark.parametrize("backend", [ACCELERATED, EXACT])
def test_tokens_are_those_that_autoawq_recorded(bundle: str, backend: str):
    """The recorded logits are of weights rounded to float16; no margin is as small as what that changes."""
    decoder = load_hybrid(oracle(bundle), backend=backend).decoder
    for case in json.loads((oracle(bundle) / "cases.json").read_text())["cases"]:
        expected = case.get("greedy_ids") or case["generated_ids"]
        assert greedy(decoder, case["input_ids"], len(expected)) == expected


@pytest.mark.parametrize("rows", [1, 5])
def test_a_linear_is_the_exact_product_in_another_order(rows: int):
    """Relative to the size of the product: rounding alone is 3e-7 here; weights rounded to float16 give 2e-4."""
    weight, bias = random_weight(64, 320, 64), torch.randn(64, generator=torch.Generator().manual_seed(1))
    x = torch.randn(rows, 320, generator=torch.Generator().manual_seed(2))
    found, exact = AcceleratedProduct(weight, bias)(x), ExactProduct(weight, bias)(x)
    assert (found - exact).abs().max() <= 2e-6 * exact.abs().max()
    assert (found - (x @ weight.floats().t() + bias)).abs().max() > 2e-5 * exact.abs().max()


def test_only_linears_in_4_bits_are_offloaded():
    table, hardware = hybrid_table(), Hardware("cpu")

    def serving(weight: str, stage: str) -> str:
        key = OperatorKey(op_name="linear", weight=weight, stage=stage, shape_sig="m=1|n=64|e=64")
        return table.choose(key, hardware, torch.float32).implementation.impl_id

    assert {serving(AWQ, stage) for stage in STAGES} == {ACCELERATED}
    assert ACCELERATED not in {serving("float", stage) for stage in STAGES}
    assert ACCELERATED not in built_in_table().candidates("linear")


def test_weights_of_a_macro_file_give_the_same_logits(checkpoint: Path, tmp_path: Path):
    write_macro(checkpoint, tmp_path)
    models = [load_hybrid(checkpoint), load_hybrid(checkpoint, tmp_path)]
    assert greedy(models[0].decoder, [5, 6, 7], 4) == greedy(models[1].decoder, [5, 6, 7], 4)
    hidden = torch.randn(3, 64, generator=torch.Generator().manual_seed(3))
    logits = [model.decoder.logits(hidden, "prefill") for model in models]
    assert logits[0].equal(logits[1])


def test_a_prompt_is_compared_with_the_reference(checkpoint: Path):
    run = compare_run(checkpoint, None, "pick up the cup", 5)
    assert run.equal and len(run.tokens) == 5
    assert run.rows > len("pick up the cup")  # the chat template's rows too


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_in_one_pass_are_rows_alone(checkpoint: Path, backend: str):
    """A prefill and the decode of its last token give the same next token."""
    decoder = load_hybrid(checkpoint, backend=backend).decoder
    tokens = greedy(decoder, [9, 8, 7], 4)
    assert greedy(decoder, [9, 8, 7, *tokens[:2]], 2) == tokens[2:]


def test_what_cannot_run_is_rejected(checkpoint: Path, tmp_path: Path):
    values = json.loads((checkpoint / "config.json").read_text())
    values.pop("quantization_config")
    (tmp_path / "config.json").write_text(json.dumps(values))
    with pytest.raises(CheckpointError, match="is not quantised"):
        load_hybrid(tmp_path)
    with pytest.raises(ConfigError, match="128 positions, 3 of the prompt and 200 asked for"):
        greedy(load_hybrid(checkpoint).decoder, [1, 2, 3], 200)
    assert load_hybrid(checkpoint).device == CPU
