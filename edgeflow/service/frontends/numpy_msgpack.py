"""Messages with numpy arrays in msgpack, in the three codings that reach the openpi socket.

| coding | an array is a map of | a scalar is a map of |
|---|---|---|
| OPENPI | `__ndarray__` true, data, dtype, shape | `__npgeneric__` true, data (a number), dtype |
| VLLM | nd true, data, type, kind (the letter of the type), shape | nd false, data, type, kind |
| PACKAGE | nd true, type, kind (empty, or not there), shape, data | nd false, type, data |

The keys of these maps are bytes; text is accepted as well. Data is in C order.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

import msgpack
import numpy as np
from numpy.typing import NDArray

from edgeflow.service.frontends.arrays import TYPES, array_of, array_type, joined
from edgeflow.service.http.bodies import MAX_DEPTH, object_of, parse_msgpack
from edgeflow_client.errors import InvalidArgument
from edgeflow_client.reasons import Reason

MESSAGE = "message"  # the field in errors that no key caused
_NUMBERS: dict[str, tuple[type, ...]] = {"b": (bool,), "i": (int,), "u": (int,), "f": (int, float)}


class ArrayCoding(Enum):
    """How arrays are written in a message."""

    OPENPI = "openpi"
    VLLM = "vllm"
    PACKAGE = "package"


def unpack(data: bytes, most: int) -> tuple[Any, ArrayCoding]:
    """The value of a message, and the coding of its first array (OPENPI where it has none).

    Arrays are read-only; numpy's scalars become plain numbers, and all keys become text. InvalidArgument names the keys
    that lead to the value at fault. A message of more than `most` values is rejected before anything is built.
    """
    reader = _ArrayReader()
    value = reader.read(parse_msgpack(data, most, _members, MESSAGE), "", 0)
    return value, reader.coding or ArrayCoding.OPENPI


def pack(value: Any, coding: ArrayCoding) -> bytes:
    """Write maps, lists, text, numbers, None, booleans and arrays of plain numbers, as the coding's own writer does."""
    return bytes(msgpack.packb(value, default=lambda each: _written(each, coding)))


def _members(pairs: list[tuple[Any, Any]]) -> dict[str, Any]:
    try:
        named = [(key.decode("ascii") if isinstance(key, bytes) else key, value) for key, value in pairs]
    except UnicodeDecodeError:
        text = "must have keys of text, or of bytes in ASCII"
        raise InvalidArgument(text, field=MESSAGE, reason=Reason.BODY_UNPARSABLE) from None
    return object_of(named, MESSAGE)


class _ArrayReader:
    """Replaces the maps that stand for arrays and numbers, and remembers the coding of the first."""

    def __init__(self) -> None:
        self.coding: ArrayCoding | None = None

    def read(self, value: Any, path: str, depth: int) -> Any:
        """The value under these keys."""
        if not isinstance(value, dict | list):
            return value
        field = path or MESSAGE
        if depth > MAX_DEPTH:
            text = f"must not be nested deeper than {MAX_DEPTH}"
            raise InvalidArgument(text, field=field, reason=Reason.BODY_DEPTH)
        if isinstance(value, list):
            return [self.read(each, path, depth + 1) for each in value]
        if "__ndarray__" in value:
            self._check(value, "__ndarray__", {"data", "dtype", "shape"}, ArrayCoding.OPENPI, field)
            return array_of(value["data"], value["dtype"], value["shape"], field)
        if "__npgeneric__" in value:
            self._check(value, "__npgeneric__", {"data", "dtype"}, ArrayCoding.OPENPI, field)
            return _scalar(value["data"], value["dtype"], field)
        if value.keys() >= {"nd", "type", "data"}:
            return self._nd(value, field)
        return {key: self.read(each, joined(path, key), depth + 1) for key, each in value.items()}

    def _nd(self, value: dict[str, Any], field: str) -> Any:
        letter, kind = array_type(value["type"], field).kind, value.get("kind", "")
        coding = ArrayCoding.PACKAGE if kind in ("", b"") else ArrayCoding.VLLM
        if coding is ArrayCoding.VLLM and kind not in (letter, letter.encode()):
            raise InvalidArgument("has another kind than its type", field=field, reason=Reason.ARRAY_TYPE)
        keys = {"type", "data"} | (value.keys() & {"kind"})
        if value["nd"] is False:
            self._check(value, "nd", keys, coding, field)
            return _scalar(value["data"], value["type"], field)
        self._check(value, "nd", keys | {"shape"}, coding, field)
        return array_of(value["data"], value["type"], value["shape"], field)

    def _check(self, value: dict[str, Any], marker: str, others: set[str], coding: ArrayCoding, field: str) -> None:
        if value.keys() != {marker} | others or not isinstance(value[marker], bool):
            named = ", ".join(sorted(others))
            text = f"has {marker}, which marks an array: must be a boolean, beside {named} and nothing else"
            raise InvalidArgument(text, field=field, reason=Reason.BODY_FIELD)
        self.coding = self.coding or coding


def _scalar(data: object, type_text: object, field: str) -> bool | int | float:
    """The number of a numpy scalar, which comes as a number or as its bytes."""
    if isinstance(data, bytes):
        number: bool | int | float = array_of(data, type_text, [], field).item()
        return number
    kind = array_type(type_text, field)
    if type(data) not in _NUMBERS[kind.kind]:
        raise InvalidArgument(f"must have a number of type {kind.name}", field=field, reason=Reason.ARRAY_TYPE)
    return data  # type: ignore[return-value]


def _written(value: object, coding: ArrayCoding) -> dict[bytes, Any]:
    """The map that stands for an array, its keys in the order of the coding's own writer."""
    if not isinstance(value, np.ndarray) or value.dtype.str not in TYPES:
        raise TypeError(f"cannot write {type(value).__name__} to a message")
    array: NDArray[Any] = value
    kind, shape, data = array.dtype, array.shape, array.tobytes()
    if coding is ArrayCoding.OPENPI:
        return {b"__ndarray__": True, b"data": data, b"dtype": kind.str, b"shape": shape}
    if coding is ArrayCoding.VLLM:
        return {b"nd": True, b"data": data, b"type": kind.str, b"kind": kind.kind, b"shape": shape}
    return {b"nd": True, b"type": kind.str, b"kind": b"", b"shape": shape, b"data": data}
