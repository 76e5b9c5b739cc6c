"""Text as it comes: whole characters, no stop string, the same text as decoding all at once."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from edgeflow.text.text_stream import BROKEN, TextStream
from tests.chat_checkpoint import END, tokenizer

BYTES = tokenizer()


class Decoding:
    """As the model's tokenizer decodes."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=not special))


def ids_of(text: str) -> list[int]:
    return list(BYTES.encode(text).ids)


def stream(ids: Sequence[int], stops: Sequence[str] = (), before: Sequence[int] = ()) -> tuple[list[str], bool]:
    """The pieces given out, until a stop string."""
    made = TextStream(Decoding(BYTES), before, stops)
    pieces = []
    for token in ids:
        pieces.append(made.push(token))
        if made.stopped:
            return pieces, True
    pieces.append(made.finish())
    return pieces, made.stopped


@given(text=st.text(max_size=30), before=st.text(max_size=10))
def test_pieces_are_whole_characters_and_make_the_text(text: str, before: str):
    pieces, stopped = stream(ids_of(text), before=ids_of(before))
    assert "".join(pieces) == text and not stopped
    assert BROKEN in text or not any(BROKEN in piece for piece in pieces)
    ends = [len("".join(pieces[: n + 1]).encode()) for n in range(len(text.encode()))]
    complete = [len(text.encode()[: n + 1].decode(errors="ignore").encode()) for n in range(len(text.encode()))]
    assert BROKEN in text or ends == complete, "a character is out as soon as its last byte is in"


@given(ids=st.lists(st.integers(0, 261), max_size=30))
def test_any_tokens_make_the_text_of_all_of_them(ids: list[int]):
    pieces, _ = stream(ids)
    assert "".join(pieces) == Decoding(BYTES).decode(ids)


@given(text=st.text("ab<", max_size=20), stops=st.lists(st.text("ab<", min_size=1, max_size=4), max_size=3))
def test_no_part_of_a_stop_string_is_returned(text: str, stops: list[str]):
    pieces, stopped = stream(ids_of(text), stops)
    places = [text.find(stop) for stop in stops if stop in text]
    ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
    if not places:
        assert not stopped and "".join(pieces) == text
        return
    first_end = min(ends)  # tokens are bytes here: the stream ends with the one that completes a stop string
    wanted = min(text.find(stop) for stop in stops if 0 <= text.find(stop) <= first_end - len(stop))
    assert stopped and "".join(pieces) == text[:wanted] and len(pieces) == first_end


def test_a_stop_string_may_begin_and_end_within_tokens():
    vocab = {"one": 0, " two": 1, " th": 2, "ree!": 3}
    words = Tokenizer(models.WordLevel(vocab, unk_token="one"))
    words.decoder = decoders.Fuse()
    made = TextStream(Decoding(words), (), ["o th"])
    assert [made.push(token) for token in (0, 1)] == ["one", " tw"]
    assert (made.push(2), made.stopped) == ("", True)
    assert made.push(3) == "" and made.finish() == ""


def test_held_back_text_comes_at_the_end():
    made = TextStream(Decoding(BYTES), (), ["<end>"])
    assert "".join(made.push(token) for token in ids_of("a<en")) == "a"
    assert made.finish() == "<en" and not made.stopped
    half = TextStream(Decoding(BYTES))
    assert [half.push(token) for token in ids_of("é")[:1]] == [""] and half.finish() == BROKEN


@pytest.mark.parametrize("before", [[], ids_of("question")])
def test_special_tokens_give_no_text(before: list[int]):
    pieces, _ = stream([*ids_of("a"), END, *ids_of("b")], before=before)
    assert "".join(pieces) == "ab"


def test_a_leading_space_of_an_answer_is_kept():
    """Tokenizers of the Llama kind drop the space that begins a text, which an answer is not."""
    made = Tokenizer(models.BPE(vocab={"▁a": 0, "▁b": 1}, merges=[]))
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    assert TextStream(Decoding(made)).push(1) == "b"
    assert TextStream(Decoding(made), [0]).push(1) == " b"
