"""Messages between processes as bytes: msgpack headers and raw payloads.

A message is `[type, field, field, …]` in msgpack, in the order of the dataclass, followed by at most one payload of
raw bytes (the pixels of a frame). A field may itself be a dataclass (an action schema, pass times), written as the
list of its fields, or an enumeration, written as its value. Nothing here can execute code; an unknown type, a wrong
field count or a field of the wrong type is a WorkerError.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Generic, TypeAlias, TypeVar, cast, get_args, get_origin, get_type_hints

import msgpack

from edgeflow.ipc.framing import Payload, Payloads
from edgeflow.ipc.messages import Message
from edgeflow_client.errors import WorkerError

Kind = TypeVar("Kind")
Reader: TypeAlias = Callable[[Any], Any]
_PAYLOADS = (Payload, Payloads)
_PLAIN: dict[Any, frozenset[type]] = {each: frozenset((each,)) for each in (bool, int, str, bytes)}
_PLAIN[float] = frozenset((int, float))
"""The msgpack types that a field of each plain type may have."""


def _reader(wanted: Any) -> Reader:
    """A function that converts a msgpack value to the type of a field; TypeError for a wrong type."""
    origin, arguments = get_origin(wanted), get_args(wanted)
    if origin is UnionType and arguments[1:] == (NoneType,):
        inner = _reader(arguments[0])
        return lambda value: None if value is None else inner(value)
    if origin in (list, tuple):
        return _sequence(origin, arguments[0])
    if is_dataclass(wanted):
        return _nested(cast("type", wanted))
    if issubclass(wanted, Enum):
        members = {each.value: each for each in wanted}
        return lambda value: members[_checked(value, type(value) in (str, int) and value in members)]
    types = _PLAIN[wanted]
    return lambda value: _checked(value, type(value) in types)


def _checked(value: Any, fits: bool) -> Any:
    if not fits:
        raise TypeError
    return value


def _sequence(kind: type, wanted: Any) -> Reader:
    if wanted in _PLAIN:
        types = _PLAIN[wanted]
        return lambda value: kind(_checked(value, type(value) is list and types.issuperset(map(type, value))))
    inner = _reader(wanted)
    return lambda value: kind(map(inner, _checked(value, type(value) is list)))


def _nested(kind: type) -> Reader:
    """A dataclass inside a message: the list of its fields."""
    hints = get_type_hints(kind)
    readers = {each.name: _reader(hints[each.name]) for each in fields(kind)}

    def read(value: Any) -> Any:
        _checked(value, type(value) is list and len(value) == len(readers))
        return kind(**{name: read(part) for (name, read), part in zip(readers.items(), value, strict=True)})

    return read


def _as_list(value: object) -> list[Any]:
    """A nested dataclass for msgpack, which calls this for every object it does not know."""
    if is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, each.name) for each in fields(value)]
    raise TypeError(f"{type(value).__name__} cannot cross between processes")


class Coding(Generic[Kind]):
    """Encodes and decodes a fixed set of dataclasses. The code of a message is its index among them."""

    def __init__(self, kinds: tuple[type, ...]) -> None:
        self._kinds = kinds
        self._codes = {kind: code for code, kind in enumerate(kinds)}
        hints = [get_type_hints(kind) for kind in kinds]
        self._readers = [
            {name: _reader(wanted) for name, wanted in each.items() if wanted not in _PAYLOADS} for each in hints
        ]
        self._payloads = [next((name for name, wanted in each.items() if wanted in _PAYLOADS), "") for each in hints]

    def encode(self, message: Kind) -> tuple[bytes, Payloads]:
        """The header and the payload of a message."""
        code = self._codes[type(message)]
        values = [getattr(message, name) for name in self._readers[code]]
        name = self._payloads[code]
        return msgpack.packb([code, *values], default=_as_list), getattr(message, name) if name else b""

    def decode(self, header: bytes | bytearray, payload: Payload = b"") -> Kind:
        """The message of a header and a payload; WorkerError if they are not a valid message."""
        try:
            parts = msgpack.unpackb(header)
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise WorkerError("unreadable message between processes") from error
        if type(parts) is not list or not parts or type(parts[0]) is not int or not 0 <= parts[0] < len(self._kinds):
            raise WorkerError("unknown message between processes")
        code, *values = parts
        kind, readers, name = self._kinds[code], self._readers[code], self._payloads[code]
        if len(values) != len(readers):
            raise WorkerError(f"{kind.__name__} has {len(readers)} fields, got {len(values)}")
        named = {name: payload} if name else {}
        for (field, read), value in zip(readers.items(), values, strict=True):
            try:
                named[field] = read(value)
            except TypeError:
                raise WorkerError(f"{kind.__name__}.{field} has the wrong type") from None
            except ValueError as error:
                raise WorkerError(f"{kind.__name__}.{field} is inconsistent") from error
        message: Kind = kind(**named)
        return message


_WORKER: Coding[Message] = Coding(Message.__args__)
encode, decode = _WORKER.encode, _WORKER.decode
