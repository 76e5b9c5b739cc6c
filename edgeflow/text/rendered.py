"""Tokenizing of rendered chat templates around texts of clients that spell out special tokens."""

from __future__ import annotations

import secrets

from tokenizers import AddedToken, Tokenizer

from edgeflow.text.encoding import encode
from edgeflow.text.marks import NONCE_BYTES, Marks, SpecialTexts
from edgeflow_client.errors import InvalidArgument


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
