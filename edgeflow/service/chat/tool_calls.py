"""Tool calls in generated text, as Qwen2.5 writes them: `<tool_call>{"name": …, "arguments": …}</tool_call>`."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

BEGIN, END = "<tool_call>", "</tool_call>"


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call."""

    index: int
    """Its position in the answer."""
    id: str
    name: str
    arguments: str
    """A JSON object as text."""


@dataclass(frozen=True, slots=True)
class ParsedText:
    """New plain text and completed calls."""

    text: str
    calls: tuple[Call, ...] = ()


class CallReader:
    """Separates generated text into plain text and calls. Everything except calls of the named tools remains text.

    inside: the prompt ended with the beginning of a call. one: text after the first call is dropped.
    """

    def __init__(self, names: Sequence[str], *, inside: bool, one: bool = False) -> None:
        self._names = frozenset(names)
        self._inside = inside
        self._one = one
        self._begun = BEGIN if not inside else ""
        self._held = ""
        self._count = 0

    def push(self, text: str) -> ParsedText:
        """Add text. Text that is part of a call, or may become one, is held back."""
        self._held += text
        plain, calls = "", list[Call]()
        while not self.is_complete:
            mark = END if self._inside else BEGIN
            before, found, behind = self._held.partition(mark)
            if not found:
                break
            self._held = behind
            if self._inside:
                call = self._call(before)
                plain += "" if call else f"{self._begun}{before}{END}"
                calls += [call] if call else []
                self._begun = BEGIN
            else:
                plain += before
            self._inside = not self._inside
        if self.is_complete:
            self._held = ""
        if not self._inside:
            # Hold back the end of the text as long as it may be the beginning of a tag.
            keep = next((size for size in range(len(BEGIN) - 1, 0, -1) if self._held.endswith(BEGIN[:size])), 0)
            end = len(self._held) - keep
            plain, self._held = plain + self._held[:end], self._held[end:]
        return ParsedText(self._plain(plain), tuple(calls))

    def finish(self) -> ParsedText:
        """End the answer; a call without its end tag counts if it is complete."""
        held, self._held = self._held, ""
        if not self._inside:
            return ParsedText(self._plain(held))
        call = self._call(held)
        return ParsedText("", (call,)) if call else ParsedText(self._begun + held)

    @property
    def is_complete(self) -> bool:
        """True after the only call: the rest of the answer is ignored."""
        return self._one and self._count > 0

    def _plain(self, text: str) -> str:
        return "" if self._count and not text.strip() else text

    def _call(self, text: str) -> Call | None:
        try:
            values = json.loads(text)
        except (ValueError, RecursionError):
            return None
        name, arguments = (
            (values.get("name"), values.get("arguments", {})) if isinstance(values, dict) else (None, None)
        )
        if not isinstance(name, str) or name not in self._names or not isinstance(arguments, dict):
            return None
        self._count += 1
        written = json.dumps(arguments, ensure_ascii=False)
        return Call(self._count - 1, f"call_{uuid.uuid4().hex[:24]}", name, written)
