"""Incremental decoding of tokens to text: whole characters only, and no part of a stop string."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

BROKEN = "\ufffd"  # what a decoder writes for half a character
CONTEXT = 5  # tokens decoded before the first: some tokenizers take a space from the beginning of a text


class DecodeIds(Protocol):
    """Token ids to text."""

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str: ...


class TextStream:
    """Decodes tokens one at a time. The returned pieces add up to the decoding of all tokens, cut before the first stop
    string. stopped: True once a stop string was found. before: ids of the prompt.
    """

    def __init__(self, tokenizer: DecodeIds, before: Sequence[int] = (), stops: Sequence[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._ids = list(before[-CONTEXT:])
        self._emitted = len(self._ids)  # ids whose text is out
        self._context = 0  # ids before them, from which decoding begins
        self._stops = tuple(stop for stop in stops if stop)
        self._held = ""
        self.stopped = False

    def push(self, token: int) -> str:
        """The text completed by this token, often empty."""
        self._ids.append(token)
        text = self._new_text()
        if text.endswith(BROKEN):
            return ""
        return self._release(self._take(text), last=False)

    def finish(self) -> str:
        """The text held back so far: an incomplete character, or the beginning of a stop string."""
        return self._release(self._take(self._new_text()), last=True)

    def _new_text(self) -> str:
        emitted = self._tokenizer.decode(self._ids[self._context : self._emitted])
        return self._tokenizer.decode(self._ids[self._context :])[len(emitted) :]

    def _take(self, text: str) -> str:
        if text:
            self._context, self._emitted = self._emitted, len(self._ids)
        return text

    def _release(self, text: str, *, last: bool) -> str:
        if self.stopped:
            return ""
        text = self._held + text
        found = [place for stop in self._stops if (place := text.find(stop)) >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)]
        keep = 0 if last else _beginning(text, self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def _beginning(text: str, stops: Sequence[str]) -> int:
    """The length of the longest suffix of `text` with which a stop string begins."""
    lengths = [size for stop in stops for size in range(1, len(stop)) if text.endswith(stop[:size])]
    return max(lengths, default=0)
