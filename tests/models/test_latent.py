"""Dense DeepSeek checkpoints: what their configuration says, what a slot takes, and what is refused."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from edgeflow.kernels.kv.formats import LATENT
from edgeflow.kernels.kv.layout import PackedLayout, Span
from edgeflow.kernels.table.dimensions import only_role, stage_of
from edgeflow.kernels.table.operator_table import OperatorTable, built_in_table
from edgeflow.lab.plain_attention import read_with_heads
from edgeflow.lab.trials.model_cases import passes, staged_cases
from edgeflow.models.attention.latent import LatentHeads, LatentSizes
from edgeflow.models.chat import load_chat_model
from edgeflow.models.llama import LlamaDecoder
from edgeflow.models.published import decoder_config, read_published
from edgeflow.models.quantization import Quantization
from edgeflow.models.shape import checkpoint_shape
from edgeflow_client.errors import CheckpointError
from tests.chat_checkpoint import LATENT as SIZES
from tests.chat_checkpoint import TEXT, YARN, write_chat_checkpoint
from tests.models.test_llama import Call, noting

CPU = torch.device("cpu")
LITE = {
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "vocab_size": 102400,
    "max_position_embeddings": 163840,
    "q_lora_rank": None,
    "rope_scaling": {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 40,
        "mscale": 0.707,
        "mscale_all_dim": 0.707,
        "original_max_position_embeddings": 4096,
        "type": "yarn",
    },
}
"""The attention of DeepSeek-V2-Lite as published, under the names of older files."""


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("v3")
    write_chat_checkpoint(directory, "deepseek_v3", q_lora_rank=24, rope_parameters=YARN)
    return directory


@pytest.fixture
def directory(published: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(published, tmp_path / "checkpoint"))


def change(directory: Path, **entries: Any) -> None:
    """Entries of config.json; `...` takes one away."""
    values = json.loads((directory / "config.json").read_text()) | entries
    kept = {name: value for name, value in values.items() if value is not ...}
    (directory / "config.json").write_text(json.dumps(kept))


def decoder(directory: Path, dtype: torch.dtype = torch.float32, table: OperatorTable | None = None) -> LlamaDecoder:
    return load_chat_model(directory, dtype, CPU, table=table).decoder


@torch.inference_mode()
def logits(of: LlamaDecoder) -> torch.Tensor:
    """Logits of two slots: prompts, a chunk beside a decode row, decode rows, and one of them alone."""
    kv = of.kv_slots(3, 24)
    kv.data.fill_(torch.nan)
    found = []
    passes = [Span(2, 0, 6), Span(0, 0, 4)], [Span(0, 4, 1), Span(2, 6, 7)], [Span(2, 13, 1), Span(0, 5, 1)]
    for spans in (*passes, [Span(0, 6, 1)]):
        rows = of.embed(torch.arange(sum(span.length for span in spans)) + 40 + spans[0].start)
        found.append(of.logits(of.forward(rows, PackedLayout.of(spans, CPU), kv), "packed"))
    return torch.cat(found)


def test_a_slot_holds_each_position_once(published: Path):
    of, rank, rotary = decoder(published), SIZES["kv_lora_rank"], SIZES["qk_rope_head_dim"]
    kv = of.kv_slots(5, 32)
    assert kv.format is LATENT and kv.data.shape == (3, 1, 5, 32, 1, rank + rotary)
    assert kv.nbytes == 3 * 5 * 32 * (rank + rotary) * 4
    heads = TEXT["num_attention_heads"] * (SIZES["qk_nope_head_dim"] + rotary + SIZES["v_head_dim"])
    assert kv.nbytes * heads == 3 * 5 * 32 * heads * 4 * (rank + rotary), "the keys and values of all heads"


def test_a_slot_holds_the_normed_latent_and_the_rotated_key(published: Path):
    """By the published projections, written out for one row."""
    model = load_chat_model(published, torch.float32, CPU)
    weights = load_file(published / "model.safetensors")
    below = {name.removeprefix("model.layers.0."): each for name, each in weights.items()}
    kv, position, token = model.decoder.kv_slots(1, 16), 11, 65
    with torch.inference_mode():
        model.decoder.forward(model.embed([token]), PackedLayout.of([Span(0, position, 1)], CPU), kv)
    x = _normed(weights["model.embed_tokens.weight"][token], below["input_layernorm.weight"])
    row = below["self_attn.kv_a_proj_with_mqa.weight"] @ x
    latent = _normed(row[:20], below["self_attn.kv_a_layernorm.weight"])
    frequencies = model.config.rope.frequencies(8, model.config.rope_theta, 0, 0)
    turns = torch.polar(torch.full((4,), model.config.rope.turn_factor), position * frequencies)
    turned = torch.view_as_complex(row[20:].view(4, 2)) * turns
    expected = torch.cat([latent, turned.real, turned.imag])
    torch.testing.assert_close(kv.data[0, 0, 0, position, 0], expected, atol=2e-5, rtol=1e-5)
    assert not kv.data[0, 0, 0, :position].any()


def _normed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return weight * x / (x.square().mean() + 1e-6).sqrt()


@pytest.mark.parametrize("impl_id", ["masked", "naive_gather", "slots_in_place"])
def test_every_attention_serves_latents(published: Path, impl_id: str):
    expected, found = (
        logits(decoder(published, table=built_in_table().forcing(packed_attention=each)))
        for each in ("reference", impl_id)
    )
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_halves_stay_near_floats(published: Path):
    """The projections of keys and values are multiplied in bfloat16, where transformers rounds as well."""
    exact, found = logits(decoder(published)), logits(decoder(published, torch.bfloat16)).float()
    assert 0 < (found - exact).abs().mean() / exact.std() < 0.05


@pytest.mark.parametrize("query_rank", [None, 24])
@torch.inference_mode()
def test_the_calls_of_a_model_are_those_that_are_listed(query_rank: int | None, tmp_path: Path):
    """What `edgeflow ops` lists and the tuner times is what passes call, no more and no less."""
    write_chat_checkpoint(tmp_path, "deepseek_v2", q_lora_rank=query_rank)
    calls: set[Call] = set()
    of, shape = decoder(tmp_path, table=noting(calls)), replace(checkpoint_shape(tmp_path, 16), stages=3)
    for spans in passes(shape):
        layout, kv = PackedLayout.of(spans, CPU), of.kv_slots(3, 40)
        hidden = of.forward_sampled(torch.randn(len(layout.row_slot), shape.hidden), layout, kv)
        of.logits(hidden, stage_of(layout.lengths))
    listed = [
        (stage, each)
        for stage, each in staged_cases(shape)
        if each.op_name not in ("greedy", "shift_kv", "shift_kv_chain")
    ]
    found = {
        (stage, each.op_name, each.layer_role or only_role(each.op_name), each.kv, each.signed()[1])
        for stage, each in listed
    }
    assert calls == found
    assert ("decode", "packed_attention", "self_attention", "latent", "m=1|t=16|kv=1|d=28") in calls
    assert ("prefill", "rope_write_kv", "self_attention", "latent", "m=16|h=6|kv=1|d=8") in calls


@pytest.mark.parametrize("weights", ["int8", "fp8"])
def test_weights_in_8_bits_serve_the_linears(published: Path, weights: str):
    exact = logits(decoder(published))
    found = logits(decoder(published, table=built_in_table().converting(weights)))
    assert 0 < (found - exact).abs().mean() / exact.std() < 0.15


def test_the_published_layout_is_read():
    config = decoder_config(LITE, "deepseek_v2")
    sizes = LatentSizes(rank=512, rotary=64, plain=128, value=128)
    assert config.latent == sizes and isinstance(config.attention, LatentHeads)
    assert (config.num_key_value_heads, config.head_dim, config.q_width) == (1, 576, 16 * 576)
    growth = 0.1 * 0.707 * math.log(40) + 1
    assert config.rope.turn_factor == 1.0
    assert config.attention.scale == pytest.approx(192**-0.5 * growth**2)
    assert config.rope.kind == "yarn" and config.rope.trained == 4096 and config.rope_theta == 10000.0


def test_missing_entries_have_the_defaults_of_the_family():
    silent = {name: value for name, value in LITE.items() if name not in ("q_lora_rank", "rope_scaling")}
    for family, positions in (("deepseek_v2", 2048), ("deepseek_v3", 4096)):
        config = decoder_config({**silent, "max_position_embeddings": None}, family)
        assert config.latent == LatentSizes(rank=512, rotary=64, plain=128, value=128, query_rank=1536)
        assert config.max_position_embeddings == positions and config.attention.scale == 192**-0.5
    halves = [decoder_config({**LITE, "rope_interleave": False}, family) for family in ("deepseek_v2", "deepseek_v3")]
    assert [each.latent.paired for each in halves] == [True, False], "V2 has no such field"


@pytest.mark.parametrize("experts", [{"n_routed_experts": None}, {"n_routed_experts": 0}])
def test_a_model_without_experts_is_dense(directory: Path, experts: dict[str, Any]):
    change(directory, **experts, first_k_dense_replace=0)
    assert read_published(directory).text.latent is not None


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"first_k_dense_replace": 2}, r"deepseek_v3 with mixtures of experts \(MoE\) is not supported, "
         r".*n_routed_experts is 256, first_k_dense_replace 2 of num_hidden_layers 3"),
        ({"first_k_dense_replace": ..., "num_hidden_layers": 4, "n_routed_experts": ...},
         "n_routed_experts is 256, first_k_dense_replace 3 of num_hidden_layers 4"),
        ({"model_type": "deepseek_v2", "first_k_dense_replace": ..., "n_routed_experts": ...},
         "deepseek_v2 .*n_routed_experts is 64, first_k_dense_replace 0 of"),
        ({"first_k_dense_replace": "3"}, "first_k_dense_replace 3 of num_hidden_layers 3"),
        ({"q_lora_rank": 0}, "q_lora_rank must be an integer from 1 to 1048576, got 0"),
        ({"q_lora_rank": "24"}, "q_lora_rank must be an integer .* got '24'"),
        ({"kv_lora_rank": None}, "kv_lora_rank must be an integer .* got None"),
        ({"kv_lora_rank": 1 << 21}, "kv_lora_rank must be an integer .* got 2097152"),
        ({"qk_rope_head_dim": 7}, "qk_rope_head_dim must be even, got 7"),
        ({"v_head_dim": 11}, r"o_proj.weight has shape \[48, 60\], expected \[48, 66\]"),
        ({"kv_lora_rank": 21}, r"kv_a_proj_with_mqa.weight has shape \[28, 48\], expected \[29, 48\]"),
        ({"rope_interleave": 1}, "rope_interleave must be true or false, got 1"),
        ({"attention_bias": True}, "attention_bias True is not supported"),
        ({"mlp_bias": True}, "mlp_bias True is not supported"),
        ({"rope_parameters": {**YARN, "rope_theta": 1}}, "rope_theta must be over 1 with yarn, got 1"),
        ({"rope_parameters": {**YARN, "mscale_all_dim": -1}}, "mscale_all_dim must be a number, at least 0, got -1"),
        ({"rope_parameters": {**YARN, "attention_factor": "x"}}, "attention_factor must be a number"),
        ({"rope_parameters": {**YARN, "truncate": 2}}, "truncate must be true or false, got 2"),
        ({"rope_parameters": {**YARN, "beta_slow": 9}}, "0 < low_freq_factor < high_freq_factor"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quant_method 'fp8' is not supported"),
    ],
)  # fmt: skip
def test_a_layout_that_is_not_served_is_rejected(directory: Path, entries: dict[str, Any], message: str):
    change(directory, **entries)
    with pytest.raises(CheckpointError, match=message) as refused:
        load_chat_model(directory, torch.float32, CPU)
    assert str(refused.value).startswith(str(directory))


@pytest.mark.parametrize("name", ["kv_a_layernorm.weight", "q_a_layernorm.weight", "kv_b_proj.weight"])
def test_a_missing_tensor_is_named(directory: Path, name: str):
    path = directory / "model.safetensors"
    tensors = load_file(path)
    del tensors[f"model.layers.1.self_attn.{name}"]
    save_file(tensors, path)
    with pytest.raises(CheckpointError, match=rf"model.layers.1.self_attn.{name} is missing"):
        load_chat_model(directory, torch.float32, CPU)


@pytest.mark.parametrize("name", ["q_proj", "q_a_proj"])
def test_projections_that_are_computed_as_one_are_quantised_alike(name: str):
    kept = Quantization(32, kept=("kv_a_proj_with_mqa",))
    with pytest.raises(CheckpointError, match=f"{name}, kv_a_proj_with_mqa are computed as one"):
        kept.check([f"model.layers.0.self_attn.{name}.qweight"])


def test_readers_of_keys_and_values_of_heads_reject_latents(published: Path):
    with pytest.raises(
        CheckpointError, match="quantize is for models with keys and values of heads; a deepseek_v3 att"
    ):
        read_with_heads(published, "quantize")
