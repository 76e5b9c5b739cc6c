"""Messages between front and worker as bytes: msgpack headers and raw payloads.

A message is `[type, field, field, …]` in msgpack, in the order of the dataclass, followed by at most one payload of
raw bytes (the pixels of a frame). A field may itself be a dataclass (an action schema, pass times), written as the
list of its fields. Nothing here can execute code; an unknown type, a wrong field count or a field of the wrong type is
a WorkerError.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, ClassVar, TypeAlias, get_args, get_origin, get_type_hints

import msgpack

from edgeflow.errors import WorkerError
from edgeflow.ipc.messages import Message, Payload

_KINDS: tuple[type, ...] = Message.__args__


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
        build = tuple if get_origin(wanted) is tuple else None
        return _Type(lambda value: type(value) is list and all(map(inner.fits, value)), build)
    if is_dataclass(wanted) and isinstance(wanted, type):
        return _nested(wanted)
    if wanted is float:
        return _Type(lambda value: type(value) in (int, float))
    return _Type(lambda value: type(value) is wanted)


def _unless_none(build: Build | None) -> Build | None:
    return (lambda value: None if value is None else build(value)) if build else None


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
    raise TypeError(f"{type(value).__name__} cannot cross between front and worker")


def _header(kind: type) -> dict[str, _Type]:
    return {name: _type_of(wanted) for name, wanted in get_type_hints(kind).items() if wanted != Payload}


class _Codes:
    """Tables by message code. header: the checks of the header's fields, by name. built: the conversions of those that
    are not used as they are. payload: the name of the field that follows the header, or "".
    """

    by_type: ClassVar[dict[type, int]] = {kind: code for code, kind in enumerate(_KINDS)}
    header: ClassVar[list[dict[str, Check]]] = [
        {name: each.fits for name, each in _header(kind).items()} for kind in _KINDS
    ]
    built: ClassVar[list[dict[str, Build]]] = [
        {name: each.build for name, each in _header(kind).items() if each.build} for kind in _KINDS
    ]
    payload: ClassVar[list[str]] = [
        next((name for name, wanted in get_type_hints(kind).items() if wanted == Payload), "") for kind in _KINDS
    ]


def encode(message: Message) -> tuple[bytes, Payload]:
    """The header and the payload of a message."""
    code = _Codes.by_type[type(message)]
    values = [getattr(message, name) for name in _Codes.header[code]]
    name = _Codes.payload[code]
    return msgpack.packb([code, *values], default=_as_list), getattr(message, name) if name else b""


def decode(header: bytes, payload: bytes) -> Message:
    """The message made from a header and a payload; WorkerError when they are not a valid message."""
    try:
        parts = msgpack.unpackb(header)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise WorkerError("unreadable message between front and worker") from error
    if type(parts) is not list or not parts or type(parts[0]) is not int or not 0 <= parts[0] < len(_KINDS):
        raise WorkerError("unknown message between front and worker")
    code, *values = parts
    kind, checks, name = _KINDS[code], _Codes.header[code], _Codes.payload[code]
    if len(values) != len(checks):
        raise WorkerError(f"{kind.__name__} has {len(checks)} fields, got {len(values)}")
    for (field, fits), value in zip(checks.items(), values, strict=True):
        if not fits(value):
            raise WorkerError(f"{kind.__name__}.{field} has the wrong type")
    named = dict(zip(checks, values, strict=True))
    for field, build in _Codes.built[code].items():
        try:
            named[field] = build(named[field])
        except ValueError as error:
            raise WorkerError(f"{kind.__name__}.{field} is inconsistent") from error
    message: Message = kind(**named, **{name: payload} if name else {})
    return message
