"""Text to token ids and back, by the checkpoint's own tokenizer.json."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from edgeflow.text.checkpoint_json import MAX_JSON_BYTES
from edgeflow.text.encoding import encode, far_exceeds
from edgeflow.text.marks import Marks, SpecialTexts
from edgeflow.text.rendered import RenderedTokenizer
from edgeflow.text.special_tokens import special_tokens
from edgeflow.text.token_bytes import TokenBytes
from edgeflow_client.errors import CheckpointError, InvalidArgument

TOKENIZER_FILE = "tokenizer.json"


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
        """The token ids of a rendered chat template: what `marks` hid is plain text, what the template wrote is not."""
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
