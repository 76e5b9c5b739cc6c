"""Every architecture against transformers: saved by it, loaded by us, logits of whole prompts, chunks and rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from edgeflow.kernels.kv.layout import PackedLayout, Span
from edgeflow.kernels.table.operator_table import built_in_table
from edgeflow.models.chat import ChatModel, load_chat_model
from edgeflow.models.prompt import Prompt
from tests.chat_checkpoint import IMAGE_TOKEN, VOCAB, YARN, write_chat_checkpoint
from tests.quantised import quantised_copies, share_of

CPU = torch.device("cpu")
TOLERANCE = 1e-4
LENGTH = 40
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"num_key_value_heads": 6}),
    "llama, tied, any head width": ("llama", {"tie_word_embeddings": True, "head_dim": 12}),
    "llama 3": ("llama", {"rope_parameters": LLAMA3}),
    "llama, linear": ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0}}),
    "llama, yarn": ("llama", {"rope_parameters": YARN}),
    "llama, dynamic": ("llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 500.0, "factor": 2.0}}),
    "llama, dynamic, beyond": (
        "llama",
        {
            "rope_parameters": {"rope_type": "dynamic", "rope_theta": 500.0, "factor": 2.0},
            "max_position_embeddings": 16,
        },
    ),
    "qwen2, seven to one": ("qwen2", {"hidden_size": 56, "num_attention_heads": 7, "num_key_value_heads": 1}),
    "qwen2, tied": ("qwen2", {"tie_word_embeddings": True, "rope_parameters": {"rope_theta": 1e6}}),
    "qwen3": ("qwen3", {"head_dim": 16}),
    "deepseek v2": ("deepseek_v2", {}),
    "deepseek v2, queries in two": ("deepseek_v2", {"q_lora_rank": 24, "rope_parameters": YARN}),
    "deepseek v3": ("deepseek_v3", {"q_lora_rank": 24, "rope_parameters": YARN, "rms_norm_eps": 1e-2}),
    "deepseek v3, halves": ("deepseek_v3", {"rope_interleave": False, "tie_word_embeddings": True}),
    "qwen2.5-vl": ("qwen2_5_vl", {}),
    "qwen2.5-vl, tied": ("qwen2_5_vl", {"tie_word_embeddings": True}),
}


@torch.inference_mode()
def ours(model: ChatModel, prompt: Prompt, cuts: list[int]) -> torch.Tensor:
    """Logits of every row [L_P, V], the prompt cut before these rows."""
    kv = model.decoder.kv_slots(2, len(prompt))
    kv.data.fill_(torch.nan)
    hidden = model.prompt_rows(prompt)
    found = []
    for start, stop in zip([0, *cuts], [*cuts, len(prompt)], strict=True):
        layout = PackedLayout.of([Span(1, start, stop - start)], CPU, prompt.positions[:, start:stop])
        found.append(model.decoder.logits(model.decoder.forward(hidden[start:stop], layout, kv), "prefill"))
    return torch.cat(found)


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_equal_transformers(name: str, tmp_path):
    family, config = FAMILIES[name]
    theirs = write_chat_checkpoint(tmp_path, family, **config)
    model = load_chat_model(tmp_path, torch.float32, CPU)
    ids = torch.randint(0, 250, (LENGTH,), generator=torch.Generator().manual_seed(0)).tolist()
    with torch.inference_mode():
        wanted = theirs(torch.tensor([ids])).logits[0]
    assert wanted.std() > 0.1, "the comparison must be able to fail"
    for cuts in ([], [7, 30], [20, 21, 22]):
        assert (ours(model, model.prompt(ids), cuts) - wanted).abs().max() <= TOLERANCE
    assert model.config.vocab_size == VOCAB and model.name == family


@pytest.mark.parametrize("sizes", [[(60, 90)], [(28, 400)], [(300, 200), (56, 56)]], ids=str)
def test_prompts_with_images_equal_transformers(sizes: list[tuple[int, int]], tmp_path):
    theirs = write_chat_checkpoint(tmp_path, "qwen2_5_vl")
    model = load_chat_model(tmp_path, torch.float32, CPU)
    random = np.random.default_rng(1)
    images = [random.integers(0, 256, (*size, 3), np.uint8) for size in sizes]
    content = [{"type": "text", "text": "Look: "}, *[{"type": "image"}] * len(sizes), {"type": "text", "text": "so?"}]
    prompt = model.chat_prompt(model.render([{"role": "user", "content": content}]), images)
    ids = torch.tensor([prompt.ids])
    with torch.inference_mode():
        wanted = theirs(
            ids,
            pixel_values=torch.cat([image.patches.values for image in prompt.images]),
            image_grid_thw=torch.tensor([(1, *image.patches.grid) for image in prompt.images]),
            mm_token_type_ids=(ids == IMAGE_TOKEN).int(),
        )
    assert prompt.shift == int(theirs.model.rope_deltas)
    middle = prompt.images[0].start + 1
    for cuts in ([], [5, middle], [middle, middle + 1]):
        assert (ours(model, prompt, cuts) - wanted.logits[0]).abs().max() <= TOLERANCE


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "qwen2_5_vl", "deepseek_v2", "deepseek_v3"])
def test_a_model_in_4_bits_is_that_of_the_same_numbers_in_floats(family: str, tmp_path: Path):
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
    if family == "qwen2_5_vl":  # with heads of 8, for which its M-RoPE sections are made
        sizes |= {"num_attention_heads": 8, "num_key_value_heads": 4}
    if family.startswith("deepseek"):
        sizes |= {"kv_lora_rank": 32, "v_head_dim": 8, "q_lora_rank": 64 if family == "deepseek_v3" else None}
    write_chat_checkpoint(tmp_path / "source", family, **sizes)
    copies = quantised_copies(tmp_path / "source", tmp_path, "model.", ["visual"])
    table = built_in_table().forcing(linear="reference")
    models = [load_chat_model(each, torch.float32, CPU, table=table) for each in copies]
    prompt = models[0].prompt(list(range(2, 2 + LENGTH)))
    four, floats = (ours(model, prompt, [7, 8]) for model in models)
    assert share_of(four, floats) < 2e-5
