"""The limits of the KV260: the buffer of activations and the memory."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from edgeflow.lab.kv260 import constants
from edgeflow.lab.kv260.constants import Constant
from edgeflow.lab.kv260.network import PAPER_MODEL, PUBLISHED
from edgeflow.lab.kv260.sizes import MIB, check_fits, memory_of, second_head_bytes, sizes
from edgeflow_client.errors import CheckpointError
from tests.lab.kv260.checkpoint import decoder_of

CONFIG = PUBLISHED[PAPER_MODEL]
DESIGN = Path(__file__).parents[3] / "deploy" / "kv260"


def test_the_memory_of_the_papers_model():
    """4096 positions of 24 layers x 2 x 128 FP32 numbers are 96 MiB."""
    found = memory_of(CONFIG, 64)
    assert found.weights == sizes(CONFIG, 64).macro and found.head == second_head_bytes(CONFIG, 64)
    assert (found.kv, found.host) == (96 * MIB, 512 * MIB)
    assert found.total == found.weights + found.head + found.kv + found.host


def test_a_head_of_its_own_is_in_the_file_and_a_short_model_keeps_fewer_positions():
    found = memory_of(decoder_of(tie_word_embeddings=False), 32)
    assert found.head == 0
    assert found.kv == 128 * 2 * 2 * 32 * 4  # positions, layers, keys and values, numbers, bytes


def test_a_model_that_takes_all_the_memory_fits(monkeypatch: pytest.MonkeyPatch):
    needed = -(-memory_of(CONFIG, 64).total // MIB)
    monkeypatch.setattr(constants, "MEMORY", Constant(needed, "MiB", "this test"))
    check_fits(PAPER_MODEL, CONFIG, 64)
    monkeypatch.setattr(constants, "MEMORY", Constant(needed - 1, "MiB", "this test"))
    message = (
        rf"qwen2.5-0.5b: expected at most the {needed - 1:,} MiB of memory of the KV260, found {needed:,} MiB \(452 "
    )
    with pytest.raises(CheckpointError, match=message):
        check_fits(PAPER_MODEL, CONFIG, 64)


@pytest.mark.parametrize(
    ("changes", "linear"),
    [
        ({"intermediate_size": 8224}, "mlp.down_proj"),
        ({"hidden_size": 8224}, "self_attn.q_proj"),
        ({"num_attention_heads": 514, "num_key_value_heads": 2, "head_dim": 16}, "self_attn.o_proj"),
    ],
)
def test_a_linear_with_more_inputs_than_the_buffer_holds_is_rejected(changes: dict[str, int], linear: str):
    with pytest.raises(CheckpointError, match=f"wide: {linear}: expected at most 8192 inputs, .* found 8224: choose"):
        check_fits("wide", decoder_of(**changes), 32)


def test_the_limit_of_inputs_is_the_designs():
    (bits,) = re.findall(r"DEPTH_BITS = (\d+);", (DESIGN / "activations.sv").read_text())
    assert constants.ACTIVATIONS.value == 8 << int(bits)
