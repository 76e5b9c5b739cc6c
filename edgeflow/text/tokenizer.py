"""Text to token ids and back, by the checkpoint's own tokenizer.json."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from edgeflow.errors import CheckpointError, InvalidArgument
from edgeflow.text.checkpoint_json import MAX_JSON_BYTES

TOKENIZER_FILE = "tokenizer.json"


class TextTokenizer:
    """vocab_size: ids are below it (the model may have more)."""

    def __init__(self, directory: Path, vocab_size: int) -> None:
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
        self.vocab_size = 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=0)
        if self.vocab_size > vocab_size:
            raise CheckpointError(
                f"{path} has ids up to {self.vocab_size - 1}, but the model's vocab_size is {vocab_size}"
            )

    @property
    def definition(self) -> str:
        """As tokenizer.json has it."""
        return str(self._tokenizer.to_str())

    def encode(self, text: str, *, special: bool) -> list[int]:
        """special: add what the tokenizer puts around a plain text (BOS), as chat templates write themselves.

        Special tokens that a text spells out are these tokens, as in the published tokenizers.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidArgument(
                "contains an unpaired surrogate, which is not valid Unicode text", field="messages"
            ) from error
        return list(self._tokenizer.encode(text, add_special_tokens=special).ids)

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """Ids beyond the vocabulary give no text, nor do special tokens unless asked for."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=not special))
