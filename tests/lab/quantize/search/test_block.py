"""The block-by-block decoder against the one that serves."""

from __future__ import annotations

import pytest
import torch

from edgeflow.kernels.kv.layout import PackedLayout, Span
from edgeflow.lab.quantize.search.decoder import DecoderTensors
from edgeflow.models.llama import LlamaDecoder
from tests.lab.quantize.cases import CONFIGS, CPU, random_decoder, random_ids

LENGTH = 40


@torch.inference_mode()
def served_logits(decoder: DecoderTensors, ids: torch.Tensor) -> torch.Tensor:
    model = LlamaDecoder(decoder.config, decoder.weights)
    kv = model.kv_slots(1, LENGTH)
    layout = PackedLayout.of([Span(slot=0, start=0, length=LENGTH)], CPU)
    return model.logits(model.forward(model.embed(ids), layout, kv), "prefill")


@torch.inference_mode()
def logits(decoder: DecoderTensors, ids: torch.Tensor) -> torch.Tensor:
    hidden, rotation = decoder.embed(ids), decoder.rotation(ids.shape[1])
    for block in decoder.blocks():
        hidden = block.run(hidden, rotation).hidden
    return decoder.read_head().logits(hidden)


@pytest.mark.parametrize("name", CONFIGS)
def test_the_decoder_agrees_with_the_one_that_serves(name: str):
    """A wrong rotation, a missing bias or head norm is off by 0.1 and more."""
    decoder = random_decoder(CONFIGS[name])
    ids = random_ids(decoder.config, 2, LENGTH)
    found = logits(decoder, ids)
    for row in range(2):
        wanted = served_logits(decoder, ids[row])
        assert (found[row] - wanted).abs().max() <= 1e-5 * wanted.abs().max()


def test_a_padded_mlp_is_the_same_function():
    ids = random_ids(CONFIGS["llama"], 1, LENGTH)
    wanted = logits(random_decoder(CONFIGS["llama"]), ids)
    found = logits(random_decoder(CONFIGS["llama"], inner=128), ids)
    assert (found - wanted).abs().max() <= 1e-5 * wanted.abs().max()


def test_the_parts_of_a_block_are_its_run():
    decoder = random_decoder(CONFIGS["qwen2"])
    block, rotation = decoder.block(0), decoder.rotation(LENGTH)
    run = block.run(decoder.embed(random_ids(decoder.config, 2, LENGTH)), rotation)
    parts = block.attention(run.inputs["self_attn.q_proj"], rotation) + block.mlp(run.inputs["mlp.up_proj"])
    hidden = decoder.embed(random_ids(decoder.config, 2, LENGTH)) + parts
    assert torch.allclose(hidden, run.hidden, atol=1e-5)
