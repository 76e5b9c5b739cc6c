"""Messages between front and worker as bytes: msgpack headers and raw payloads.

A message is `[type, field, field, …]` in msgpack, in the order of the dataclass, and at most one payload of
raw bytes (the pixels of a frame). Nothing here can execute code; an unknown type, a wrong field count or a field of
another type is a WorkerError.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, TypeAlias, get_args, get_origin, get_type_hints

import msgpack

from edgeflow.errors import WorkerError
from edgeflow.ipc.messages import Message, Payload

_KINDS: tuple[type, ...] = Message.__args__


Check: TypeAlias = Callable[[Any], bool]


def _check_of(wanted: Any) -> Check:
    """Whether a value from msgpack is of a field's type; whole numbers pass as floats."""
    if wanted is Any:
        return lambda _: True
    if get_origin(wanted) is list:
        inner = _check_of(get_args(wanted)[0])
        return lambda value: type(value) is list and all(map(inner, value))
    if wanted is float:
        return lambda value: type(value) in (int, float)
    return lambda value: type(value) is wanted


def _header(kind: type) -> dict[str, Check]:
    return {name: _check_of(wanted) for name, wanted in get_type_hints(kind).items() if wanted != Payload}


class _Codes:
    """header: the checks of the fields in a header, by name. payload: the name of the field that travels behind it."""

    by_type: ClassVar[dict[type, int]] = {kind: code for code, kind in enumerate(_KINDS)}
    header: ClassVar[list[dict[str, Check]]] = [_header(kind) for kind in _KINDS]
    payload: ClassVar[list[str]] = [
        next((name for name, wanted in get_type_hints(kind).items() if wanted == Payload), "") for kind in _KINDS
    ]


def encode(message: Message) -> tuple[bytes, Payload]:
    """Header and payload of a message."""
    code = _Codes.by_type[type(message)]
    values = [getattr(message, name) for name in _Codes.header[code]]
    name = _Codes.payload[code]
    return msgpack.packb([code, *values]), getattr(message, name) if name else b""


def decode(header: bytes, payload: bytes) -> Message:
    """The message of a header and payload; WorkerError when it is none of ours."""
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
            raise WorkerError(f"{kind.__name__}.{field} is of another type")
    named = dict(zip(checks, values, strict=True))
    message: Message = kind(**named, **{name: payload} if name else {})
    return message
