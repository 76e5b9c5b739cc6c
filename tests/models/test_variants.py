"""Checkpoints as versions of transformers and people leave them: their logits are those that transformers computes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from edgeflow.lab.plain_attention import read_with_heads
from edgeflow.models.chat import load_chat_model
from edgeflow.models.published import read_published, unfit_for_gates
from edgeflow_client.errors import CheckpointError
from tests.chat_checkpoint import write_chat_checkpoint
from tests.models.test_families import CPU, LENGTH, TOLERANCE, ours

YARN = {"factor": 4.0, "original_max_position_embeddings": 16}
SECTIONS = {"mrope_section": [1, 1, 2]}
Change = Callable[[Path], None]


def stated(**entries: Any) -> Change:
    """Entries of config.json; None removes one. A model with images is written flat, as it was first published."""

    def change(directory: Path) -> None:
        values = json.loads((directory / "config.json").read_text())
        values = {**values.pop("text_config", {}), **values}
        values = {name: value for name, value in (values | entries).items() if value is not None}
        (directory / "config.json").write_text(json.dumps(values))

    return change


def with_head(share: float) -> Change:
    """A head beside the embedding that it is tied with. share: of noise in it."""

    def change(directory: Path) -> None:
        tensors = load_file(directory / "model.safetensors")
        embedding = tensors["model.embed_tokens.weight"]
        tensors["lm_head.weight"] = embedding + share * torch.randn(embedding.shape)
        save_file(tensors, directory / "model.safetensors", {"format": "pt"})

    return change


VARIANTS: dict[str, tuple[str, dict[str, Any], Change]] = {
    "theta beside": ("qwen2", {}, stated(rope_parameters=None, rope_theta=1e6, torch_dtype="bfloat16", dtype=None)),
    "scaling by its older name": (
        "llama",
        {},
        stated(rope_parameters=None, rope_theta=500000, rope_scaling={"type": "linear", "factor": 4.0}),
    ),
    "scaling put beside": ("qwen2", {}, stated(rope_scaling={"rope_type": "linear", "factor": 4.0})),
    "yarn put beside": ("qwen2", {}, stated(rope_scaling={"type": "yarn", **YARN})),
    "yarn with images": (
        "qwen2_5_vl",
        {},
        stated(rope_parameters=None, rope_theta=1e4, rope_scaling={"type": "yarn", **YARN, **SECTIONS}),
    ),
    "two names of one activation": ("llama", {}, stated(hidden_act="swish")),
    "a head like the embedding": ("qwen2", {"tie_word_embeddings": True}, with_head(0.0)),
    "a head unlike the embedding": ("qwen2", {"tie_word_embeddings": True}, with_head(0.3)),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_logits_are_those_of_transformers(tmp_path: Path, name: str):
    import transformers

    family, config, change = VARIANTS[name]
    write_chat_checkpoint(tmp_path, family, **config)
    change(tmp_path)
    kind = "AutoModelForImageTextToText" if family == "qwen2_5_vl" else "AutoModelForCausalLM"
    theirs = getattr(transformers, kind).from_pretrained(tmp_path, dtype=torch.float32, attn_implementation="eager")
    model = load_chat_model(tmp_path, torch.float32, CPU)
    ids = torch.randint(0, 250, (LENGTH,), generator=torch.Generator().manual_seed(0)).tolist()
    with torch.inference_mode():
        wanted = theirs.eval()(torch.tensor([ids])).logits[0]
    assert (ours(model, model.prompt(ids), [7]) - wanted).abs().max() <= TOLERANCE


def test_yarn_is_rejected_by_quantize_and_gates(tmp_path: Path):
    write_chat_checkpoint(tmp_path, "qwen2", rope_parameters={"rope_type": "yarn", "rope_theta": 1e4, **YARN})
    with pytest.raises(CheckpointError, match="quantize does not support rotary embeddings of type yarn"):
        read_with_heads(tmp_path, "quantize")
    assert unfit_for_gates(read_published(tmp_path)) == "a qwen2 with rotary embeddings of type yarn"
