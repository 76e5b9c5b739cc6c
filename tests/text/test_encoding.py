"""Long texts: the ids of the library's own call, while other threads run, and little work for what is too long."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest
from tokenizers import Tokenizer

from edgeflow.model_paths import EMBEDDED_CHAT_MODEL
from edgeflow.text import tokenizer as text_tokenizer
from edgeflow.text.tokenizer import PIECE, encode, far_exceeds
from tests.chat_checkpoint import tokenizer as byte_tokenizer

TEXTS = [
    "the arm is at rest and the cup is red, " * 2000,
    "x y 0.5 -1.25;\n" * 5000,
    "a" * 70_000,
    " " * 70_000,
    "日本語🤖" * 15_000,
    "<|im_end|> naïve " * 4000,
]


@pytest.fixture(params=["bytes", "embedded"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    if request.param == "bytes":
        return byte_tokenizer()
    return Tokenizer.from_file(str(EMBEDDED_CHAT_MODEL / "tokenizer.json"))


@pytest.mark.parametrize("text", ["", *TEXTS], ids=lambda text: repr(text[:8]))
def test_the_ids_are_those_of_the_library(tokenizer: Tokenizer, text: str):
    for special in (False, True):
        assert encode(tokenizer, text, special=special) == tokenizer.encode(text, add_special_tokens=special).ids


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: repr(text[:8]))
def test_texts_that_fit_are_never_too_long_and_texts_of_twice_the_length_always_are(tokenizer: Tokenizer, text: str):
    assert len(text) > 3 * PIECE
    count = len(encode(tokenizer, text, special=False))
    assert not far_exceeds(tokenizer, text, count)
    assert far_exceeds(tokenizer, text, count // 2)


def test_only_the_beginning_of_a_far_too_long_text_is_encoded(monkeypatch: pytest.MonkeyPatch):
    seen: list[int] = []

    def counted(tokenizer: Tokenizer, text: str, *, special: bool) -> list[int]:
        seen.append(len(text))
        return encode(tokenizer, text, special=special)

    monkeypatch.setattr(text_tokenizer, "encode", counted)
    assert far_exceeds(byte_tokenizer(), "a" * (100 * PIECE), PIECE)
    assert seen == [PIECE, PIECE]
    assert not far_exceeds(byte_tokenizer(), "é" * 100, 200)
    assert len(seen) == 2, "a text has no more tokens than bytes"


@pytest.fixture
def cooperative() -> Iterator[None]:
    """No thread is interrupted: others run when the one that runs lets them."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("cooperative")
def test_other_threads_run_meanwhile():
    tokenizer, ran, begin = byte_tokenizer(), [], threading.Event()

    def other() -> None:
        begin.wait()
        ran.append(True)

    thread = threading.Thread(target=other)
    thread.start()
    begin.set()
    encode(tokenizer, TEXTS[0] * 10, special=False)
    ran_meanwhile = bool(ran)
    thread.join()
    assert ran_meanwhile
