"""The bytes of single tokens: joined, they are the text."""

from __future__ import annotations

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from edgeflow.text.tokenizer import TokenBytes

TEXT = "Grüße, 😀 and 漢字\n\tdone"
SPACE = "\u2581"  # SentencePiece writes it for a space


def byte_level() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({each: id_ for id_, each in enumerate(alphabet)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return made


def sentence_piece() -> Tokenizer:
    """As Llama 2's: bytes for characters that the vocabulary lacks, and a first space that decoding drops."""
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), SPACE, *"Grüeand,ox"]
    made = Tokenizer(models.BPE({each: id_ for id_, each in enumerate(pieces)}, [], byte_fallback=True, fuse_unk=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    made.decoder = decoders.Sequence(steps)
    return made


def metaspace() -> Tokenizer:
    pieces = [SPACE, *"Grüße, and done".replace(" ", ""), "😀", "漢", "字", "\n", "\t"]
    made = Tokenizer(models.BPE({each: id_ for id_, each in enumerate(dict.fromkeys(pieces))}, []))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    return made


MADE = {"byte level": byte_level, "SentencePiece": sentence_piece, "Metaspace": metaspace}


@pytest.mark.parametrize("name", MADE)
def test_the_bytes_of_the_tokens_join_to_the_text(name: str):
    tokenizer = MADE[name]()
    tokenizer.add_special_tokens([AddedToken("<|é|>", special=True)])
    ids = tokenizer.encode(TEXT).ids
    bytes_of = TokenBytes(tokenizer)
    joined = b"".join(bytes_of(each) or b"" for each in ids).decode()
    assert joined == TEXT if name == "byte level" else joined == f" {TEXT}", "with the space that decoding drops"
    assert bytes_of(tokenizer.token_to_id("<|é|>")) == "<|é|>".encode()
    assert bytes_of(10_000) is None


def test_tokens_of_one_byte_have_that_byte():
    bytes_of = TokenBytes(byte_level())
    ids = byte_level().encode("😀").ids
    assert [bytes_of(each) for each in ids] == [b"\xf0", b"\x9f", b"\x98", b"\x80"]
    tokenizer = sentence_piece()
    bytes_of = TokenBytes(tokenizer)
    assert [bytes_of(each) for each in tokenizer.encode("😀").ids] == [b" ", b"\xf0", b"\x9f", b"\x98", b"\x80"]
    assert bytes_of(tokenizer.token_to_id("<0x41>")) == b"A"


def test_a_tokenizer_without_a_decoder_shows_its_pieces():
    tokenizer = Tokenizer(models.WordLevel({"a": 0}, "a"))
    assert TokenBytes(tokenizer)(0) == b"a"
