"""Tokenizers with more tokens than their model embeds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer

from edgeflow.text.tokenizer import Marks, TextTokenizer
from edgeflow_client.errors import CheckpointError, InvalidArgument
from tests.chat_checkpoint import SPECIALS, tokenizer

ROWS = 256 + len(SPECIALS)


def saved(directory: Path, *added: AddedToken) -> TextTokenizer:
    made = tokenizer()
    made.add_tokens(list(added))
    made.save(str(directory / "tokenizer.json"))
    return TextTokenizer(directory, ROWS)


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("count", [1, 3, 100])
def test_a_token_beyond_the_embedding_is_rejected_only_in_a_text_that_has_it(tmp_path: Path, count: int, special: bool):
    text = saved(tmp_path, *(AddedToken(f"[PAD{index}]", special=special) for index in range(count)))
    assert text.encode("[PAD]", special=True) == list(tokenizer().encode("[PAD]").ids)
    last = f"[PAD{count - 1}]"
    for field in ("prompt", "instruction"):
        with pytest.raises(InvalidArgument) as caught:
            text.encode(f"a{last}b", special=False, field=field)
        assert caught.value.text == f"{field}: contains the token {last}, which the model does not embed"


def test_a_chat_may_contain_it_as_text_and_a_template_may_not_write_it(tmp_path: Path):
    text = saved(tmp_path, AddedToken("[PAD]", special=True))
    marks = Marks(text.special)
    said = marks.hide("say [PAD]")
    assert text.encode_rendered(f"<|im_start|>{said}", marks) == tokenizer().encode("<|im_start|>say [PAD]").ids
    with pytest.raises(InvalidArgument, match=r"contains the token \[PAD\]"):
        text.encode_rendered(f"[PAD]{said}", marks)


def test_the_definition_for_schemas_has_only_the_tokens_of_the_model(tmp_path: Path):
    definition = saved(tmp_path, AddedToken("[PAD]", special=True)).definition
    assert Tokenizer.from_str(definition).get_vocab() == tokenizer().get_vocab()


def test_the_tokenizer_of_a_larger_model_is_reported(tmp_path: Path):
    tokenizer().save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(CheckpointError, match=r"tokenizer\.json has ids up to 255, but the model's vocab_size is 100"):
        TextTokenizer(tmp_path, 100)


@pytest.mark.parametrize(("named", "end"), [("<|im_end|>", 258), ("a", 64), ("<|nothing|>", None), (None, None)])
def test_the_end_of_text(tmp_path: Path, named: str | None, end: int | None):
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": named}))
    assert saved(tmp_path).end == end
