"""Log probabilities by a token's text and bytes, where texts are equal or no characters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edgeflow.service.chat.answer import Piece, TokenText
from edgeflow.service.chat.formats import ChatFormat, TextFormat
from edgeflow.text.tokenizer import TextTokenizer
from tests.text.test_token_bytes import SPACE, sentence_piece


@pytest.fixture
def tokenizer(tmp_path: Path) -> TextTokenizer:
    made = sentence_piece()
    made.add_tokens([f"{SPACE}a"])
    made.save(str(tmp_path / "tokenizer.json"))
    return TextTokenizer(tmp_path, 1000)


def told(kind: Any, tokenizer: TextTokenizer, token: int, *top: int) -> dict[str, Any]:
    """The log probabilities of one token; the alternatives have -1, -2, …, the token itself -9 unless it is one."""
    shown = tuple((each, -1.0 - index) for index, each in enumerate(top))
    piece = Piece("", TokenText(token, dict(shown).get(token, -9.0), shown), finish="stop")
    logprobs: dict[str, Any] = kind("id", 0, "m", tokenizer).choice(0, [piece])["logprobs"]
    return logprobs


def test_a_part_of_a_character_has_its_own_bytes(tokenizer: TextTokenizer):
    first, second = 1 + 0xF0, 1 + 0x9F
    (entry,) = told(ChatFormat, tokenizer, first, first, second)["content"]
    assert (entry["token"], entry["bytes"], entry["logprob"]) == ("\\xf0", [0xF0], -1.0)
    assert [each["bytes"] for each in entry["top_logprobs"]] == [[0xF0], [0x9F]]
    texts = told(TextFormat, tokenizer, first, first, second)
    assert texts["tokens"] == ["bytes:\\xf0"]
    assert texts["top_logprobs"] == [{"bytes:\\xf0": -1.0, "bytes:\\x9f": -2.0}]


def test_a_space_before_a_word_is_part_of_its_token(tokenizer: TextTokenizer):
    space = 257
    (entry,) = told(ChatFormat, tokenizer, space)["content"]
    assert (entry["token"], entry["bytes"]) == (" ", [0x20])


def test_equal_texts_do_not_replace_each_other(tokenizer: TextTokenizer):
    letter, byte, beyond, further = 258 + "Grüeand,ox".index("d"), 1 + ord("d"), 900, 901
    found = told(TextFormat, tokenizer, byte, letter, byte, beyond, further)["top_logprobs"][0]
    assert found == {"d": -2.0, f"token_id:{letter}": -1.0, "": -3.0, f"token_id:{further}": -4.0}


def test_the_token_itself_is_always_among_its_alternatives(tokenizer: TextTokenizer):
    letter = 258
    assert told(TextFormat, tokenizer, letter, 259)["top_logprobs"] == [{"G": -9.0, "r": -1.0}]
    assert told(TextFormat, tokenizer, letter)["top_logprobs"] == [{"G": -9.0}]


def test_an_id_without_a_text_has_no_bytes(tokenizer: TextTokenizer):
    assert told(ChatFormat, tokenizer, 900)["content"][0]["bytes"] is None
