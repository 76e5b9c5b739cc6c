"""Texts of a request: bounded before they are tokenised, and tokenised once where they may fit."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer

from edgeflow.config.chat import ChatConfig
from edgeflow.config.sections import LimitsConfig
from edgeflow.service.chat.messages import InputMessage
from edgeflow.service.chat.prompts import COUNTED_BYTES, ChatText
from edgeflow.text import tokenizer
from edgeflow_client.errors import InvalidArgument
from tests.chat_checkpoint import VOCAB, write_chat_checkpoint

CAPACITY = 64


@pytest.fixture
def text(tmp_path: Path) -> ChatText:
    write_chat_checkpoint(tmp_path, "qwen2")
    return ChatText(tmp_path, ChatConfig(capacity=CAPACITY), LimitsConfig())


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The characters of each text that is tokenised."""
    seen: list[int] = []
    encode = tokenizer.encode

    def counting(tokens: object, text: str, *, special: bool) -> list[int]:
        seen.append(len(text))
        return encode(tokens, text, special=special)

    monkeypatch.setattr(tokenizer, "encode", counting)
    return seen


def test_a_text_that_may_fit_is_tokenised_once(text: ChatText, encoded: list[int]):
    most = COUNTED_BYTES * CAPACITY
    assert text.encode("a" * most)
    assert encoded == [most]
    encoded.clear()
    with pytest.raises(InvalidArgument, match=f"more tokens than fit; the limit is {CAPACITY}"):
        text.encode("ab c" * CAPACITY + "d")
    assert encoded == [most + 1], "counted, and not tokenised again"


def test_a_token_that_the_model_does_not_embed_is_a_request_at_fault(text: ChatText, tmp_path: Path):
    path = tmp_path / "tokenizer.json"
    tokens = Tokenizer.from_file(str(path))
    tokens.add_special_tokens([f"[PAD{number}]" for number in range(VOCAB - tokens.get_vocab_size() + 1)])
    tokens.save(str(path))
    padded = ChatText(tmp_path, ChatConfig(capacity=CAPACITY), LimitsConfig())
    last = max(tokens.get_vocab(), key=lambda each: tokens.get_vocab()[each])
    assert tokens.token_to_id(last) == VOCAB and padded.encode("ab") == text.encode("ab")
    with pytest.raises(InvalidArgument) as caught:
        padded.encode(f"a{last}b")
    assert caught.value.text == f"prompt: contains the token {last}, which the model does not embed"
    said = [InputMessage(role="user", content=f"a{last}b")]
    assert padded.tokenizer.decode(padded.count(said)).count(last) == 1, "in a chat it is text"


def test_invalid_unicode_is_rejected(text: ChatText):
    for count in (1, 8 * CAPACITY):
        with pytest.raises(InvalidArgument, match="unpaired surrogate"):
            text.encode("\ud800" * count)
