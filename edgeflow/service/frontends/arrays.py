"""Numpy arrays as clients describe them: by type, shape and bytes, or as nested lists.

Every coding of arrays shares these rules, which are checked before an array is built: its type is looked up in a list
of plain numbers, so that no object, record, text or date is ever built; its shape stands for exactly the bytes given.
"""

from __future__ import annotations

import math
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeflow_client.errors import InvalidArgument
from edgeflow_client.reasons import Reason

MAX_DIMENSIONS = 8
MAX_NUMBERS = 1 << 31  # an empty array can declare any size
MAX_FIELD = 100  # characters of a client's name that an error repeats
TYPES: dict[str, np.dtype[Any]] = {
    name: kind
    for code in ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"]
    for kind in (np.dtype(code).newbyteorder(">"), np.dtype(code).newbyteorder("<"))
    for name in (kind.str, kind.name)  # the name alone means little-endian, which comes last
}
"""The types of numbers that are accepted, by numpy's text for them (`<f4`) and by name (`float32`)."""


def array_type(text: object, field: str) -> np.dtype[Any]:
    """The type with this name; InvalidArgument unless it is a type of plain numbers."""
    name = text.decode("latin-1") if isinstance(text, bytes) else text
    found = TYPES.get(name) if isinstance(name, str) else None
    if found is None:
        shown = f", not {shortened(name)}" if isinstance(name, str) else ""
        kinds = "must have as type a boolean, an integer or a float of at most 8 bytes, such as <f4"
        raise InvalidArgument(f"{kinds}{shown}", field=field, reason=Reason.ARRAY_TYPE)
    return found


def array_of(data: object, type_text: object, shape: object, field: str) -> NDArray[Any]:
    """The array over these bytes in C order, without a copy; InvalidArgument if bytes and shape do not match."""
    kind = array_type(type_text, field)
    if not isinstance(data, bytes):
        raise InvalidArgument("must have bytes as data", field=field, reason=Reason.BODY_FIELD)
    if not isinstance(shape, list) or not all(type(size) is int and size >= 0 for size in shape):
        text = "must have a list of sizes as shape, none of them negative"
        raise InvalidArgument(text, field=field, reason=Reason.ARRAY_SHAPE)
    if len(shape) > MAX_DIMENSIONS:
        text = f"has {len(shape)} dimensions; the limit is {MAX_DIMENSIONS}"
        raise InvalidArgument(text, field=field, reason=Reason.ARRAY_SHAPE)
    if math.prod(size or 1 for size in shape) > MAX_NUMBERS:
        text = f"has a shape of more than {MAX_NUMBERS} numbers"
        raise InvalidArgument(text, field=field, reason=Reason.ARRAY_SHAPE)
    needed = math.prod(shape) * kind.itemsize
    if needed != len(data):
        text = f"has {len(data)} bytes; shape {shape} of {kind.name} takes {needed}"
        raise InvalidArgument(text, field=field, reason=Reason.ARRAY_SHAPE)
    return np.ndarray(tuple(shape), kind, data)


def as_array(value: object, field: str) -> NDArray[Any]:
    """An array where one is expected: as it is, or made of a number or of nested lists of numbers.

    Lists of integers become int64, all others float64; a number has no dimension. InvalidArgument where lists differ in
    length or hold something else than numbers.
    """
    if isinstance(value, np.ndarray):
        return value
    members: list[Any] = [value]
    shape: list[int] = []
    while (kinds := set(map(type, members))) == {list}:
        sizes = set(map(len, members))
        if len(sizes) > 1 or len(shape) == MAX_DIMENSIONS:
            text = f"must have lists of the same length at each level, and at most {MAX_DIMENSIONS} levels"
            raise InvalidArgument(text, field=field, reason=Reason.ARRAY_SHAPE)
        shape.append(sizes.pop())
        members = list(chain.from_iterable(members))
    if not kinds <= {int, float}:
        text = "must be an array, or nested lists of numbers alone"
        raise InvalidArgument(text, field=field, reason=Reason.ARRAY_TYPE)
    try:
        return np.array(members, np.int64 if kinds == {int} else np.float64).reshape(shape)
    except OverflowError:
        raise InvalidArgument("has a number beyond 64 bits", field=field, reason=Reason.ARRAY_TYPE) from None


def shortened(text: str) -> str:
    """A client's text as errors repeat it: one line, printable and short."""
    return (text if text.isprintable() else ascii(text))[:MAX_FIELD]


def joined(path: str, key: str) -> str:
    """The path to a member: a client's keys joined by dots, in one line, and bounded in length."""
    return f"{path}.{shortened(key)}"[:MAX_FIELD] if path else shortened(key)
