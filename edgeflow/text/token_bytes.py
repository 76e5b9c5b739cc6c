"""The bytes of single tokens, which may be a part of a character or begin with a space that decoding drops."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from tokenizers import Tokenizer

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenBytes:
    """Bytes by token id, as the decoder of a tokenizer joins them: of byte-level and SentencePiece vocabularies."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._added = {id_: token.content for id_, token in tokenizer.get_added_tokens_decoder().items()}
        steps = list(_steps(tokenizer))
        kinds = {step["type"] for step in steps}
        self._alphabet = _alphabet() if "ByteLevel" in kinds else {}
        self._with_bytes = "ByteFallback" in kinds
        self._replaced = [each for step in steps if (each := _replaced(step)) is not None]

    def __call__(self, token: int) -> bytes | None:
        """The bytes of a token; None of an id that stands for no text."""
        if token in self._added:
            return self._added[token].encode()
        piece = self._tokenizer.id_to_token(token)
        if piece is None:
            return None
        if self._alphabet:
            return b"".join(self._alphabet.get(character) or character.encode() for character in piece)
        if self._with_bytes and (byte := _BYTE.fullmatch(piece)):
            return bytes.fromhex(byte[1])
        for old, new in self._replaced:
            piece = piece.replace(old, new)
        return piece.encode()


def _steps(tokenizer: Tokenizer) -> Iterator[dict[str, Any]]:
    """The decoder's steps, as tokenizer.json writes them."""
    if tokenizer.decoder is None:
        return
    waiting = [json.loads(tokenizer.decoder.__getstate__())]
    while waiting:
        step = waiting.pop(0)
        yield step
        waiting += step.get("decoders", [])


def _replaced(step: dict[str, Any]) -> tuple[str, str] | None:
    """The text that a step replaces, and by which."""
    if step["type"] == "Metaspace":
        return step["replacement"], " "
    if step["type"] == "Replace" and "String" in step["pattern"]:
        return step["pattern"]["String"], step["content"]
    return None


def _alphabet() -> dict[str, bytes]:
    """The byte that each character of a byte-level vocabulary stands for.

    Bytes that print in Latin-1 stand for themselves, the others are the characters from 256 on.
    """
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(0x100) if byte not in shown]
    characters = [*shown, *range(0x100, 0x100 + len(hidden))]
    return {chr(each): bytes([byte]) for each, byte in zip(characters, [*shown, *hidden], strict=True)}
