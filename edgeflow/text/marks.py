"""Special tokens in texts of clients, hidden behind marks while a chat template writes its own around them."""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection
from typing import Any

NONCE_BYTES = 16  # random: nobody can write a mark


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
