"""Special tokens by name, wherever versions of transformers keep them, as transformers reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from edgeflow.text.chat_template import ChatTemplate
from edgeflow.text.checkpoint_json import special_tokens
from edgeflow.text.tokenizer import TextTokenizer
from edgeflow_client.errors import CheckpointError
from tests.chat_checkpoint import END, VOCAB, tokenizer

BOS = {"bos_token": "<|end|>"}
OBJECT = {"content": "<|end|>", "lstrip": False, "rstrip": False, "normalized": False, "single_word": False}
TURNS = [{"role": "user", "content": "hi"}]
LISTED = {"added_tokens_decoder": {"256": {**OBJECT, "special": True}}}


@pytest.mark.parametrize(
    ("config", "map_", "bos"),
    [
        (BOS, {}, "<|end|>"),
        ({"bos_token": OBJECT | {"__type": "AddedToken"}}, {}, "<|end|>"),
        ({"bos_token": None}, {}, ""),
        ({}, {}, ""),
        ({}, BOS, "<|end|>"),
        ({}, {"bos_token": OBJECT}, "<|end|>"),
        ({"bos_token": None}, BOS, "<|end|>"),
        (BOS, {"bos_token": "<|im_start|>"}, "<|im_start|>"),
        (BOS, {"bos_token": None}, ""),
        (LISTED, BOS, ""),
        (LISTED | BOS, {"bos_token": "<|im_start|>"}, "<|end|>"),
    ],
)
def test_tokens_are_named_as_in_transformers(tmp_path: Path, config: Any, map_: Any, bos: str):
    from transformers import PreTrainedTokenizerFast

    template = "{{ bos_token }}|{{ eos_token }}"
    tokenizer().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template, **config}))
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"eos_token": "<|im_end|>", **map_}))
    theirs = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    named = {name: text for name, text in theirs.special_tokens_map.items() if isinstance(text, str)}
    assert special_tokens(tmp_path) == named
    ours = ChatTemplate.load(tmp_path)
    assert ours is not None and ours(TURNS) == theirs.apply_chat_template(TURNS, tokenize=False)
    assert named.get("bos_token", "") == bos
    assert TextTokenizer(tmp_path, VOCAB).end == (None if "added_tokens_decoder" in config else END)


def test_a_map_that_is_no_object_is_reported(tmp_path: Path):
    (tmp_path / "special_tokens_map.json").write_text("[]")
    with pytest.raises(CheckpointError, match=r"special_tokens_map\.json must hold a JSON object"):
        special_tokens(tmp_path)
    (tmp_path / "special_tokens_map.json").write_text('{"bos_token": 5, "eos_token": {}, "pad_token": ["x"]}')
    assert special_tokens(tmp_path) == {}
