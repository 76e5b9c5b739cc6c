"""Text to token ids and back, by the checkpoint's own tokenizer.json: special tokens in texts of clients are text."""

from __future__ import annotations

import json
import re
import secrets
import threading
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from edgeflow.text.checkpoint_json import MAX_JSON_BYTES, special_tokens
from edgeflow_client.errors import CheckpointError, InvalidArgument

PIECE = 16 << 10  # characters
SLACK = 1.125  # a cut may add tokens, or change those around it
NONCE_BYTES = 16  # random: nobody can write a mark
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
TOKENIZER_FILE = "tokenizer.json"


def encode(tokenizer: Tokenizer, text: str, *, special: bool) -> list[int]:
    """The token ids of a text.

    It is encoded as a batch of one, during which the library lets other threads run; its other calls do not.
    """
    (encoding,) = tokenizer.encode_batch_fast([text], add_special_tokens=special)
    return list(encoding.ids)


def far_exceeds(tokenizer: Tokenizer, text: str, most: int) -> bool:
    """True if a text has many more than `most` tokens; found in pieces, of which the last ones are not encoded then.

    A token takes several hundred bytes while a text is being encoded.
    """
    if len(text.encode()) <= most:
        return False
    count = 0
    for start in range(0, len(text), PIECE):
        count += len(encode(tokenizer, text[start : start + PIECE], special=False))
        if count > SLACK * most:
            return True
    return False


class SpecialTexts:
    """Finds the texts of special tokens, the longest first, as tokenizers do."""

    def __init__(self, texts: Collection[str]) -> None:
        longest = sorted(texts, key=len, reverse=True)
        self.pattern = re.compile("|".join(map(re.escape, longest)) or "(?!)")


class Marks:
    """Replaces special tokens in the values of a request, and puts them back. any: some were found."""

    def __init__(self, special: SpecialTexts) -> None:
        self._special = special
        self._nonce = secrets.token_hex(NONCE_BYTES)
        self._numbers: dict[str, int] = {}

    @property
    def any(self) -> bool:
        return bool(self._numbers)

    def hide(self, value: Any) -> Any:
        """The same value with marks in place of special tokens, in keys too."""
        if isinstance(value, str):
            return self._special.pattern.sub(self._mark, value)
        if isinstance(value, dict):
            return {self.hide(key): self.hide(each) for key, each in value.items()}
        if isinstance(value, list):
            return [self.hide(each) for each in value]
        return value

    def show(self, text: str) -> str:
        """A text with the special tokens in place of the marks."""
        if not self._numbers:
            return text
        texts = list(self._numbers)
        return re.sub(f"{self._nonce}([0-9]+)z", lambda found: texts[int(found[1])], text)

    def _mark(self, found: re.Match[str]) -> str:
        number = self._numbers.setdefault(found[0], len(self._numbers))
        return f"{self._nonce}{number}z"


class RenderedTokenizer:
    """A second tokenizer that reads special tokens as text, except for those that a template wrote.

    Other tokens stand in for these, at the same places and with the same properties, so that all other ids are those
    of the rendered text as a whole.
    """

    def __init__(self, definition: str, special: SpecialTexts) -> None:
        self._tokenizer = Tokenizer.from_str(definition)
        self._special = special
        written = [token for token in self._tokenizer.get_added_tokens_decoder().values() if token.special]
        nonce = secrets.token_hex(NONCE_BYTES)
        self._stand_ins = {token.content: f"{nonce}{number}y" for number, token in enumerate(written)}
        self._tokenizer.add_tokens([_like(token, self._stand_ins[token.content]) for token in written])
        ids = {token.content: id_ for id_, token in self._tokenizer.get_added_tokens_decoder().items()}
        self._meant = {ids[stand_in]: ids[content] for content, stand_in in self._stand_ins.items()}
        self._tokenizer.encode_special_tokens = True

    def encode(self, text: str, marks: Marks) -> list[int]:
        """The token ids of a rendered text, in which `marks` hid what clients wrote."""
        template_s = self._special.pattern.sub(lambda found: self._stand_ins[found[0]], text)
        ids = encode(self._tokenizer, marks.show(template_s), special=False)
        if not set(self._meant.values()).isdisjoint(ids):
            raise InvalidArgument(
                "contains a special token, which this model's tokenizer cannot read as text", field="messages"
            )
        return [self._meant.get(id_, id_) for id_ in ids]


def _like(token: AddedToken, text: str) -> AddedToken:
    return AddedToken(
        text,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        single_word=token.single_word,
        normalized=token.normalized,
        special=False,
    )


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


class TextTokenizer:
    """The tokenizer of a checkpoint directory, for any number of threads.

    special: the texts of its special tokens. end: the id of its eos_token, None where it names none.
    bytes_of: the bytes of a token.
    """

    def __init__(self, directory: Path, vocab_size: int) -> None:
        """vocab_size: rows of the model's embedding. Added tokens may lie beyond them, as a padding token often does
        that came with a fine-tuning; texts that contain one are rejected. CheckpointError for other tokens there."""
        path = directory / TOKENIZER_FILE
        if not path.is_file():
            raise CheckpointError(f"{directory} has no {TOKENIZER_FILE}: only this tokenizer format is supported")
        if path.stat().st_size > MAX_JSON_BYTES:
            raise CheckpointError(f"{path} has more than {MAX_JSON_BYTES} bytes: too large for a tokenizer")
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises plain Exception
            raise CheckpointError(f"{path} is not a tokenizer: copy the checkpoint again") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        added = self._tokenizer.get_added_tokens_decoder()
        largest = max(self._tokenizer.get_vocab(with_added_tokens=True).values() - added.keys(), default=0)
        if largest >= vocab_size:
            raise CheckpointError(f"{path} has ids up to {largest}, but the model's vocab_size is {vocab_size}")
        self._beyond = {id_: token.content for id_, token in added.items() if id_ >= vocab_size}
        self.special = SpecialTexts([token.content for token in added.values() if token.special])
        end = special_tokens(directory).get("eos_token")
        self.end: int | None = self._tokenizer.token_to_id(end) if end is not None else None
        self.bytes_of = TokenBytes(self._tokenizer)
        self._lock = threading.Lock()
        self._rendered: RenderedTokenizer | None = None

    @property
    def definition(self) -> str:
        """The contents of tokenizer.json, without the tokens that the model does not embed."""
        definition = str(self._tokenizer.to_str())
        if not self._beyond:
            return definition
        values = json.loads(definition)
        values["added_tokens"] = [token for token in values["added_tokens"] if token["id"] not in self._beyond]
        return json.dumps(values)

    def encode(self, text: str, *, special: bool, field: str = "messages") -> list[int]:
        """The token ids of a text. special: add the tokens of a plain text (BOS); chat templates write their own.

        Special tokens spelled out in a text are encoded as such, as published tokenizers do. field: of the text, for
        InvalidArgument where it is not valid Unicode, or contains a token that the model does not embed.
        """
        _check_unicode(text, field)
        return self._embedded(encode(self._tokenizer, text, special=special), field)

    def far_exceeds(self, text: str, most: int) -> bool:
        """True if a text has many more than `most` tokens, at the cost of encoding little more than so many."""
        _check_unicode(text)
        return far_exceeds(self._tokenizer, text, most)

    def encode_rendered(self, text: str, marks: Marks) -> list[int]:
        """The token ids of a rendered chat template: text that `marks` hid is plain text, and the special tokens that
        the template wrote are tokens.
        """
        _check_unicode(marks.show(text))
        with self._lock:  # made when it is first needed: it takes as much memory as this one
            rendered = self._rendered = self._rendered or RenderedTokenizer(self._tokenizer.to_str(), self.special)
        return self._embedded(rendered.encode(text, marks), "messages")

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """The text of token ids; ids beyond the vocabulary are skipped, and so are special tokens unless `special`."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=not special))

    def _embedded(self, ids: list[int], field: str) -> list[int]:
        beyond = self._beyond.keys() & ids
        if beyond:
            found = self._beyond[min(beyond)]
            raise InvalidArgument(f"contains the token {found[:60]}, which the model does not embed", field=field)
        return ids


def _check_unicode(text: str, field: str = "messages") -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument("contains an unpaired surrogate, which is not valid Unicode text", field=field) from error
