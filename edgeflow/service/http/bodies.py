"""Request bodies: their content type, and JSON and msgpack whose values are counted before anything is built."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any, NoReturn

import msgpack

from edgeflow_client.errors import InvalidArgument, RequestError
from edgeflow_client.reasons import Reason

JSON_TYPE = "application/json"
MSGPACK_TYPES = ("application/msgpack", "application/x-msgpack")
MAX_DEPTH = 32
MAX_DIGITS = 9  # of a number in a path or a query
CHARACTERS_PER_VALUE = 32  # on average, outside strings: a number in full precision has 25
_CHUNK_BYTES = 16 << 10  # scanning takes a small multiple of that in memory
_SPACE = b" \t\r\n"
_NO_BRACKET = bytes(byte for byte in range(256) if byte not in b"[]{}")


class UnsupportedMedia(RequestError):
    """The content type is not supported."""

    http_status = 415


def media_type(header: str, accepted: tuple[str, ...]) -> str:
    """The type in a content-type header, without its parameters; UnsupportedMedia if it is not an accepted one."""
    kind = header.partition(";")[0].strip().lower()
    if kind not in accepted:
        named = " or ".join(accepted)
        raise UnsupportedMedia(f"must be {named}", field="content-type", reason=Reason.CONTENT_TYPE)
    return kind


def parse_number(text: str) -> int | None:
    """A number in a path or a query, of ASCII digits; None if it is none, or has more than MAX_DIGITS."""
    return int(text) if len(text) <= MAX_DIGITS and text.isascii() and text.isdigit() else None


def parse_json(data: bytes, most: int) -> Any:
    """Parse a JSON text of at most `most` values, containers included; InvalidArgument says what is wrong with it."""
    _JSONScan(most).check(data)
    try:
        return json.loads(data.decode("utf-8"), object_pairs_hook=object_of, parse_constant=_constant)
    except (ValueError, RecursionError):
        raise _unparsable("must be JSON in UTF-8") from None


def object_of(pairs: list[tuple[Any, Any]], field: str = "body") -> dict[str, Any]:
    """An object with these members. A repeated name is rejected, because parsers disagree on its meaning."""
    if not all(isinstance(name, str) for name, _ in pairs):
        raise _unparsable("must have text as keys", field)
    members = dict(pairs)
    if len(members) < len(pairs):
        raise _unparsable("must not name a key of an object twice", field)
    return members


def parse_msgpack(
    data: bytes,
    most: int,
    make: Callable[[list[tuple[Any, Any]]], Any] = object_of,
    field: str = "body",
) -> Any:
    """Parse a msgpack value of at most `most` values, keys and containers included.

    make: makes the value of a map from its pairs, whose keys are texts or bytes.
    field: the field that errors name.
    """
    _count_msgpack(data, most, field)
    try:
        return msgpack.unpackb(data, object_pairs_hook=make, max_ext_len=0)
    except (ValueError, msgpack.UnpackException, RecursionError):
        raise _unparsable("must be valid msgpack", field) from None


class _JSONScan:
    """Counts the values of a JSON text, chunk by chunk: strings are cut out, and the rest is structure.

    A text with a wrong count is not JSON, and the parser stops where counting went wrong.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._values = 1
        self._characters = 0
        self._depth = 0
        self._inside = 0  # 1 within a string

    def check(self, data: bytes) -> None:
        """Raise InvalidArgument for a text with too many values, or nested too deeply."""
        at = 0
        while at < len(data):
            end = min(at + _CHUNK_BYTES, len(data))
            chunk = data[at:end]
            if (len(chunk) - len(chunk.rstrip(b"\\"))) % 2 and end < len(data):
                end += 1  # keep an escape in one chunk
                chunk = data[at:end]
            self._add(chunk)
            at = end
        if self._inside or self._depth:
            raise _unparsable("must be JSON in UTF-8")

    def _add(self, chunk: bytes) -> None:
        if b"\\" in chunk:
            chunk = chunk.replace(b"\\\\", b"__").replace(b'\\"', b"__")
        pieces = chunk.split(b'"')
        structure = b"".join(pieces[self._inside :: 2]).translate(None, _SPACE)
        self._inside = (self._inside + len(pieces) - 1) % 2
        brackets = structure.translate(None, _NO_BRACKET)
        self._values += structure.count(b",") + brackets.count(b"[") + brackets.count(b"{")
        self._characters += len(structure)
        if self._values > self._most or self._characters > CHARACTERS_PER_VALUE * self._most:
            raise _too_many(self._most)
        for bracket in brackets:
            self._depth += 1 if bracket in b"[{" else -1
            if not 0 <= self._depth <= MAX_DEPTH:
                if self._depth < 0:
                    raise _unparsable("must be JSON in UTF-8")
                text = f"must not be nested deeper than {MAX_DEPTH}"
                raise InvalidArgument(text, field="body", reason=Reason.BODY_DEPTH)


def _constant(name: str) -> NoReturn:
    raise _unparsable(f"must be JSON, which has no {name}")


_LENGTHS = {0xC4: ">B", 0xC5: ">H", 0xC6: ">I", 0xD9: ">B", 0xDA: ">H", 0xDB: ">I"}  # of bin and str
_MEMBERS = {0xDC: (">H", 1), 0xDD: (">I", 1), 0xDE: (">H", 2), 0xDF: (">I", 2)}  # array, map: values of a member
_SIZES = {0xC0: 0, 0xC2: 0, 0xC3: 0, 0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}
_SIZES |= {0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8}


def _count_msgpack(data: bytes, most: int, field: str) -> None:
    """Step from header to header; only the number of values matters, the parser checks everything else."""
    at, left, values = 0, 1, 0
    try:
        while left:
            values += 1
            if values + left - 1 > most:
                raise _too_many(most, field)
            size, members = _header(data, at, field)
            at += size
            left += members - 1
    except (IndexError, struct.error):
        raise _unparsable("must be valid msgpack", field) from None


def _header(data: bytes, at: int, field: str) -> tuple[int, int]:
    """The bytes of a value up to its members, if it has any, and the values these are."""
    kind = data[at]
    if kind < 0x80 or kind >= 0xE0:
        return 1, 0
    if kind < 0xA0:
        return 1, (kind & 15) * (2 if kind < 0x90 else 1)
    if kind < 0xC0:
        return 1 + (kind & 31), 0
    if kind in _LENGTHS:
        code = _LENGTHS[kind]
        return 1 + struct.calcsize(code) + int(struct.unpack_from(code, data, at + 1)[0]), 0
    if kind in _MEMBERS:
        code, each = _MEMBERS[kind]
        return 1 + struct.calcsize(code), each * int(struct.unpack_from(code, data, at + 1)[0])
    if kind not in _SIZES:
        raise _unparsable("must be valid msgpack without extension types", field)
    return 1 + _SIZES[kind], 0


def _too_many(most: int, field: str = "body") -> InvalidArgument:
    return InvalidArgument(f"must not hold more than {most} values", field=field, reason=Reason.BODY_VALUES)


def _unparsable(why: str, field: str = "body") -> InvalidArgument:
    return InvalidArgument(why, field=field, reason=Reason.BODY_UNPARSABLE)
