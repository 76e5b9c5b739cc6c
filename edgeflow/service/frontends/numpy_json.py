"""JSON bodies with numpy arrays, as json-numpy 2.1.1 writes them.

An array is `{"__numpy__": "<base64>", "dtype": "<f4", "shape": [7]}`, its data in C order. Bodies may be encoded twice:
`{"encoded": "<JSON text>"}`, which is answered by a JSON text within a JSON string.
"""

from __future__ import annotations

import base64
import json
from typing import Any

from numpy.typing import NDArray

from edgeflow.service.frontends.arrays import array_of, joined
from edgeflow.service.http.bodies import parse_json
from edgeflow_client.errors import InvalidArgument
from edgeflow_client.reasons import Reason

BODY, ENCODED, _MARKER = "body", "encoded", "__numpy__"
_COMPACT = (",", ":")
MAX_MEMBERS = 1024  # objects and keys of a body, which are far slower to read than numbers in a list


def parse(body: bytes, most: int) -> tuple[dict[str, Any], bool]:
    """The object in a body, its arrays decoded, and True if it was encoded twice.

    Arrays are read-only; one without dimensions becomes a number. Lists stay as they are: arrays.as_array reads those
    of numbers. InvalidArgument names the keys that lead to the value at fault. A body of more than `most` values, or of
    more than MAX_MEMBERS objects and keys, is rejected before anything is built; an image of 224x224 pixels as a list
    has 200,929 values, its lists included.
    """
    value = _object(_parsed(body, most), BODY)
    double = ENCODED in value
    if double:
        value = _object(_inner(value, most), ENCODED)
    return {key: _decoded(each, joined("", key)) for key, each in value.items()}, double


def array_json(array: NDArray[Any]) -> dict[str, Any]:
    """The object that stands for an array."""
    data = base64.b64encode(array.tobytes()).decode()
    return {_MARKER: data, "dtype": array.dtype.str, "shape": list(array.shape)}


def answer_body(value: Any, double: bool) -> bytes:
    """The body of an answer with arrays.

    double: as a JSON text within a JSON string, for a body that was encoded twice.
    """
    if double:
        value = json.dumps(value, default=array_json, allow_nan=False)
    return json.dumps(value, default=array_json, allow_nan=False, ensure_ascii=False, separators=_COMPACT).encode()


def _object(value: Any, field: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidArgument("must be an object", field=field, reason=Reason.BODY_SHAPE)
    return value


def _parsed(text: bytes, most: int) -> Any:
    if text.count(b"{") + text.count(b":") > MAX_MEMBERS:
        why = f"must not hold more than {MAX_MEMBERS} objects and keys"
        raise InvalidArgument(why, field=BODY, reason=Reason.BODY_VALUES)
    return parse_json(text, most)


def _inner(value: dict[str, Any], most: int) -> Any:
    text = value[ENCODED]
    if len(value) > 1 or not isinstance(text, str):
        why = "must be a text, and the only key"
        raise InvalidArgument(why, field=ENCODED, reason=Reason.BODY_FIELD)
    try:
        return _parsed(text.encode("utf-8", "surrogatepass"), most)
    except InvalidArgument as error:
        why = f"must hold JSON in UTF-8, of at most {most} values, {MAX_MEMBERS} of them objects and keys"
        raise InvalidArgument(why, field=ENCODED, reason=Reason(error.reason)) from None


def _decoded(value: Any, path: str) -> Any:
    if not isinstance(value, dict):
        return value
    if _MARKER not in value:
        return {key: _decoded(each, joined(path, key)) for key, each in value.items()}
    if value.keys() != {_MARKER, "dtype", "shape"}:
        text = f"has {_MARKER}, which marks an array: must have dtype and shape beside it, and nothing else"
        raise InvalidArgument(text, field=path, reason=Reason.BODY_FIELD)
    try:
        data = base64.b64decode(value[_MARKER], validate=True)
    except (TypeError, ValueError):
        raise InvalidArgument("must be base64", field=path, reason=Reason.BODY_FIELD) from None
    array = array_of(data, value["dtype"], value["shape"], path)
    return array if array.ndim else array.item()
