"""Expressions that compute a figure from a result file: paths, numbers, + - * / and parentheses.

A path is made of keys (`chat.rows`, or `["640x480 raw"]` where a key is not a plain word), list indexes (`[0]`, `[-1]`)
and selectors (`[mode=serial, speed_cm_s=5]`), which give the one entry of a list that has all these values. Values are
numbers, `true`, `false`, `null`, words or quoted text.
"""

from __future__ import annotations

import re
from typing import Any

TOKEN = re.compile(
    r"""\s*(?:(?P<number>\d+(?:\.\d+)?)|(?P<word>[^\W\d]\w*)|"(?P<text>[^"]*)"|(?P<mark>[-+*/().\[\],=]))"""
)
WORDS: dict[str, bool | None] = {"true": True, "false": False, "null": None}


class ExpressionError(ValueError):
    """An expression that cannot be read, or that does not lead to a number."""


def evaluate(expression: str, data: Any) -> float:
    """The number that an expression gives in the contents of a result file."""
    value = _Reader(expression, data).whole()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ExpressionError(f"{expression}: {type(value).__name__} is not a number")
    return value


class _Reader:
    """Recursive descent over the tokens of one expression, computing as it reads."""

    def __init__(self, expression: str, data: Any) -> None:
        self._expression, self._data = expression, data
        self._tokens: list[tuple[str, str]] = []
        at = 0
        while expression[at:].strip():
            found = TOKEN.match(expression, at)
            if found is None:
                raise self._wrong(f"cannot read {expression[at:].strip()[:20]!r}")
            at = found.end()
            kind = str(found.lastgroup)
            self._tokens.append((kind, found[kind]))
        self._tokens.append(("end", ""))

    def whole(self) -> Any:
        value = self._sum()
        if self._tokens[0][0] != "end":
            raise self._wrong(f"{self._tokens[0][1]!r} is left over")
        return value

    def _sum(self) -> Any:
        value = self._product()
        while self._tokens[0][1] in ("+", "-") and self._tokens[0][0] == "mark":
            sign = 1 if self._mark("+-") == "+" else -1
            value = self._number(value) + sign * self._number(self._product())
        return value

    def _product(self) -> Any:
        value = self._factor()
        while self._tokens[0] in (("mark", "*"), ("mark", "/")):
            if self._mark("*/") == "*":
                value = self._number(value) * self._number(self._factor())
            else:
                value = self._number(value) / self._number(self._factor())
        return value

    def _factor(self) -> Any:
        kind, token = self._tokens[0]
        if kind == "number":
            return self._plain()
        if (kind, token) == ("mark", "-"):
            self._mark("-")
            return -self._number(self._factor())
        if (kind, token) == ("mark", "("):
            self._mark("(")
            value = self._sum()
            self._mark(")")
            return value
        return self._path()

    def _path(self) -> Any:
        """Keys, indexes and selectors, from the top of the file."""
        value = self._step(self._data) if self._tokens[0] == ("mark", "[") else self._key(self._data)
        while self._tokens[0] in (("mark", "."), ("mark", "[")):
            if self._tokens[0][1] == ".":
                self._mark(".")
                value = self._key(value)
            else:
                value = self._step(value)
        return value

    def _key(self, value: Any) -> Any:
        kind, key = self._tokens.pop(0)
        if kind != "word":
            raise self._wrong(f"a key is expected, not {key!r}")
        return self._entry(value, key)

    def _step(self, value: Any) -> Any:
        """An index, a quoted key or a selector in brackets."""
        self._mark("[")
        kind, token = self._tokens[0]
        if self._tokens[1] == ("mark", "="):
            found = self._selected(value)
        elif kind == "text":
            self._tokens.pop(0)
            found = self._entry(value, token)
        else:
            found = self._entry(value, self._plain())
        self._mark("]")
        return found

    def _selected(self, value: Any) -> Any:
        wanted: dict[str, object] = {}
        while True:
            key = self._tokens.pop(0)[1]
            self._mark("=")
            wanted[key] = self._plain()
            if self._tokens[0] != ("mark", ","):
                break
            self._mark(",")
        try:
            return only(value, **wanted)
        except LookupError as error:
            raise self._wrong(str(error)) from None

    def _plain(self) -> Any:
        """A number, word or quoted text."""
        kind, token = self._tokens.pop(0)
        if (kind, token) == ("mark", "-"):
            return -self._number(self._plain())
        if kind == "number":
            return float(token) if "." in token else int(token)
        if kind == "word":
            return WORDS.get(token, token)
        if kind == "text":
            return token
        raise self._wrong(f"a value is expected, not {token!r}")

    def _entry(self, value: Any, key: object) -> Any:
        try:
            return value[key]
        except (LookupError, TypeError):
            raise self._wrong(f"no {key!r}") from None

    def _mark(self, marks: str) -> str:
        kind, token = self._tokens.pop(0)
        if kind != "mark" or token not in marks:
            raise self._wrong(f"{' or '.join(marks)} is expected, not {token!r}")
        return token

    def _number(self, value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(f"{value!r} is not a number")
        return value

    def _wrong(self, why: str) -> ExpressionError:
        return ExpressionError(f"{self._expression}: {why}")


def only(entries: Any, **wanted: object) -> Any:
    """The one entry of a list that has these values."""
    if not isinstance(entries, list):
        raise LookupError(f"a selector needs a list, not {type(entries).__name__}")
    found = [each for each in entries if all(key in each and each[key] == value for key, value in wanted.items())]
    if len(found) != 1:
        raise LookupError(f"{len(found)} entries with {wanted}")
    return found[0]
