"""Messages between processes as bytes: msgpack headers and raw payloads.

A message is `[type, field, field, …]` in msgpack, in the order of the dataclass, followed by at most one payload of
raw bytes (the pixels of a frame). A field may itself be a dataclass (an action schema, pass times), written as the
list of its fields, or an enumeration, written as its value. Nothing here can execute code; an unknown type, a wrong
field count or a field of the wrong type is a WorkerError.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Generic, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

import msgpack

from edgeflow.ipc.messages import Message
from edgeflow.ipc.payloads import Payload, Payloads
from edgeflow_client.errors import WorkerError

Kind = TypeVar("Kind")
_PAYLOADS = (Payload, Payloads)
Check: TypeAlias = Callable[[Any], bool]
Build: TypeAlias = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class _Type:
    """A field's type. fits: checks a value from msgpack. build: converts one that fits; None = used as it is."""

    fits: Check
    build: Build | None = None


def _type_of(wanted: Any) -> _Type:
    """The check and the conversion of a field's annotation; integers are accepted as floats."""
    arguments = get_args(wanted)
    if get_origin(wanted) is UnionType and arguments[1:] == (NoneType,):
        inner = _type_of(arguments[0])
        return _Type(lambda value: value is None or inner.fits(value), _unless_none(inner.build))
    if get_origin(wanted) in (list, tuple):
        inner = _type_of(arguments[0])
        build = _sequence(tuple if get_origin(wanted) is tuple else list, inner.build)
        return _Type(lambda value: type(value) is list and all(map(inner.fits, value)), build)
    if is_dataclass(wanted) and isinstance(wanted, type):
        return _nested(wanted)
    if isinstance(wanted, type) and issubclass(wanted, Enum):
        values = frozenset(each.value for each in wanted)
        return _Type(lambda value: type(value) in (str, int) and value in values, wanted)
    if wanted is float:
        return _Type(lambda value: type(value) in (int, float))
    return _Type(lambda value: type(value) is wanted)


def _unless_none(build: Build | None) -> Build | None:
    return (lambda value: None if value is None else build(value)) if build else None


def _sequence(kind: type, build: Build | None) -> Build | None:
    if build is None:
        return None if kind is list else kind
    return lambda values: kind(build(value) for value in values)


def _nested(kind: type) -> _Type:
    """A dataclass inside a message: the list of its fields."""
    hints = get_type_hints(kind)
    types = {each.name: _type_of(hints[each.name]) for each in fields(kind)}

    def fits(value: Any) -> bool:
        return (
            type(value) is list
            and len(value) == len(types)
            and all(each.fits(part) for each, part in zip(types.values(), value, strict=True))
        )

    def build(value: list[Any]) -> Any:
        parts = zip(types.items(), value, strict=True)
        return kind(**{name: each.build(part) if each.build else part for (name, each), part in parts})

    return _Type(fits, build)


def _as_list(value: object) -> list[Any]:
    """A nested dataclass for msgpack, which calls this for every object it does not know."""
    if is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, each.name) for each in fields(value)]
    raise TypeError(f"{type(value).__name__} cannot cross between processes")


class Coding(Generic[Kind]):
    """Encodes and decodes a fixed set of dataclasses; the code of a message is its place among them."""

    def __init__(self, kinds: tuple[type, ...]) -> None:
        self._kinds = kinds
        self._codes = {kind: code for code, kind in enumerate(kinds)}
        types = [_header(kind) for kind in kinds]
        self._checks = [{name: each.fits for name, each in header.items()} for header in types]
        self._builds = [{name: each.build for name, each in header.items() if each.build} for header in types]
        self._payloads = [_payload_field(kind) for kind in kinds]

    def encode(self, message: Kind) -> tuple[bytes, Payloads]:
        """The header and the payload of a message."""
        code = self._codes[type(message)]
        values = [getattr(message, name) for name in self._checks[code]]
        name = self._payloads[code]
        return msgpack.packb([code, *values], default=_as_list), getattr(message, name) if name else b""

    def decode(self, header: bytes, payload: Payload = b"") -> Kind:
        """The message made from a header and a payload; WorkerError when they are not a valid message."""
        try:
            parts = msgpack.unpackb(header)
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise WorkerError("unreadable message between processes") from error
        if type(parts) is not list or not parts or type(parts[0]) is not int or not 0 <= parts[0] < len(self._kinds):
            raise WorkerError("unknown message between processes")
        code, *values = parts
        kind, checks, name = self._kinds[code], self._checks[code], self._payloads[code]
        if len(values) != len(checks):
            raise WorkerError(f"{kind.__name__} has {len(checks)} fields, got {len(values)}")
        for (field, fits), value in zip(checks.items(), values, strict=True):
            if not fits(value):
                raise WorkerError(f"{kind.__name__}.{field} has the wrong type")
        named = dict(zip(checks, values, strict=True))
        for field, build in self._builds[code].items():
            try:
                named[field] = build(named[field])
            except ValueError as error:
                raise WorkerError(f"{kind.__name__}.{field} is inconsistent") from error
        message: Kind = kind(**named, **{name: payload} if name else {})
        return message


def _header(kind: type) -> dict[str, _Type]:
    return {name: _type_of(wanted) for name, wanted in get_type_hints(kind).items() if wanted not in _PAYLOADS}


def _payload_field(kind: type) -> str:
    """The name of the field that follows the header, or ""."""
    return next((name for name, wanted in get_type_hints(kind).items() if wanted in _PAYLOADS), "")


_WORKER: Coding[Message] = Coding(Message.__args__)
encode, decode = _WORKER.encode, _WORKER.decode
