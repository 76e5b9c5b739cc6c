"""Bodies of HTTP requests: what a sender chooses costs no memory or time before it is rejected."""

from __future__ import annotations

import base64
import json
import struct
import tracemalloc
from collections.abc import Callable
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeflow.service.frontends.act import MAX_VALUES, parse_body
from edgeflow.service.http.bodies import JSON_TYPE, MSGPACK_TYPES, UnsupportedMedia, parse_json, parse_msgpack
from edgeflow_client.errors import InvalidArgument, RequestError

MIB = 1 << 20
FRAME = {"image": base64.b64encode(bytes(48)).decode(), "format": "rgb8", "width": 4, "height": 4, "instruction": "go"}


def rejection(parse: Callable[[], Any]) -> tuple[RequestError, int]:
    """The error, and the memory that it took to find it."""
    tracemalloc.start()
    try:
        with pytest.raises(RequestError) as caught:
            parse()
        return caught.value, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def many_keys(count: int) -> bytes:
    return b"{" + b",".join(b'"%d":1' % number for number in range(count)) + b"}"


def filled(fill: bytes, before: bytes = b'{"image":[') -> bytes:
    """8 MiB of the same."""
    return (before + fill * (8 * MIB // len(fill)))[: 8 * MIB]


HOSTILE = {
    "keys": many_keys(700_000),
    "keys within a field": b'{"proprio":' + many_keys(700_000) + b"}",
    "empty objects": filled(b"{},"),
    "empty lists": filled(b"[],"),
    "empty texts": filled(b'"",'),
    "numbers": filled(b"1,"),
    "nesting": filled(b"["),
    "nesting in objects": filled(b'{"a":'),
    "closing": filled(b"]"),
    "a long number": filled(b"1", b'{"width":'),
    "backslashes": filled(b"\\", b'{"image":'),
    "quotes after backslashes": filled(b'\\"', b'{"image":'),
    "colons": filled(b":", b"{"),
    "zeros": bytes(8 * MIB),
}


@pytest.mark.parametrize("body", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_body_is_rejected_before_anything_is_built(body: bytes):
    error, peak = rejection(lambda: parse_body(JSON_TYPE, body))
    assert (error.http_status, error.field, peak < MIB) == (400, "body", True), (error, peak)


ESCAPES = {
    "escapes": b'{"image":"' + b"\\\\" * (4 * MIB - 20) + b'"}',
    "escaped quotes": b'{"image":"' + b'\\"' * (4 * MIB - 20) + b'"}',
}


@pytest.mark.parametrize("body", ESCAPES.values(), ids=ESCAPES.keys())
def test_a_long_text_is_one_value(body: bytes):
    """The text itself is built, nothing else is."""
    error, peak = rejection(lambda: parse_body(JSON_TYPE, body))
    assert (error.field, error.reason) == ("image", "BODY_FIELD")
    assert peak < 4 * len(body)


SMALL = {
    "a number without end": ({"width": 0}, b'"width": 0', b'"width": 1' + b"0" * 5000, "body"),
    "a huge number": ({"width": 0}, b'"width": 0', b'"width": 1e999999', "width"),
    "a number that is none": ({"width": 0}, b'"width": 0', b'"width": NaN', "body"),
    "infinity": ({"width": 0}, b'"width": 0', b'"width": -Infinity', "body"),
    "a key twice": ({"width": 0}, b'"width": 0', b'"width": 0, "width": 1', "body"),
    "no base64": ({"image": "?"}, b"?", b"a" * 9 + b"=", "image"),
    "a field that is none": ({"": 1}, b'""', b'"' + b"k" * 5000 + b'"', "k" * 100),
}


@pytest.mark.parametrize(("changes", "old", "new", "field"), SMALL.values(), ids=SMALL.keys())
def test_a_bad_value_names_its_field(changes: dict[str, Any], old: bytes, new: bytes, field: str):
    body = json.dumps({**FRAME, **changes}).encode().replace(old, new, 1)
    error, peak = rejection(lambda: parse_body(JSON_TYPE, body))
    assert (error.http_status, error.field) == (400, field)
    assert peak < MIB // 4


@pytest.mark.parametrize("bad", ["x", None, True, [1], {}])
def test_the_first_bad_number_is_named_and_no_other(bad: object):
    body = json.dumps({**FRAME, "proprio": {f"joint {index}": bad for index in range(4000)}}).encode()
    error, peak = rejection(lambda: parse_body(JSON_TYPE, body))
    assert (error.field, peak < 2 * MIB) == ("proprio.joint 0", True), peak


def bomb(header: bytes, depth: int) -> bytes:
    return header * depth


PACKED = {
    "nested lists": bomb(b"\x91", 8 * MIB),
    "nested wide lists": bomb(b"\xdc\x01\x00", 2 * MIB),
    "nested maps": bomb(b"\x81\xa1k", 2 * MIB),
    "a list of four billion": b"\xdd\xff\xff\xff\xff",
    "a map of four billion": b"\xdf\xff\xff\xff\xff",
    "a text of four gigabytes": b"\xdb\xff\xff\xff\xff",
    "wide lists in a list": b"\x81\xa5image\xdc\x01\x00" + (b"\xdc\x01\x00" + b"\x90" * 256) * 8000,
    "a map of empty maps": b"\x81\xa5image\xdd\x00\x20\x00\x00" + b"\x80" * (2 * MIB),
    "an extension": b"\xc9\xff\xff\xff\xff\x01",
    "a timestamp": b"\xd6\xff\x00\x00\x00\x00",
    "more than one value": b"\x80\x80",
    "nothing": b"",
    "half a header": b"\xdc\x01",
    "numbers as keys": b"\x81\x01\x01",
    "bytes as keys": b"\x81\xc4\x01k\x01",
    "a key twice": b"\x82\xa1k\x01\xa1k\x01",
}


@pytest.mark.parametrize("body", PACKED.values(), ids=PACKED.keys())
def test_hostile_msgpack_is_rejected_before_anything_is_built(body: bytes):
    error, peak = rejection(lambda: parse_body(MSGPACK_TYPES[0], body))
    assert (error.http_status, error.field, peak < MIB) == (400, "body", True), (error, peak)


@pytest.mark.parametrize(
    "value",
    [
        {"a": [1, -1, 1 << 40, -(1 << 40), 0.5, None, True, "x" * 40, "x" * 300, "x" * 70_000, b"x" * 300, b""]},
        {"a": {str(index): index for index in range(300)}, "b": list(range(-200, 70_000, 7))},
    ],
)
def test_values_of_every_kind_are_counted(value: Any):
    packed = msgpack.packb(value)
    total = 1 + sum(2 + (2 if isinstance(each, dict) else 1) * len(each) for each in value.values())
    assert parse_msgpack(packed, total) == value
    with pytest.raises(InvalidArgument, match=f"more than {total - 1} values"):
        parse_msgpack(packed, total - 1)
    assert parse_msgpack(struct.pack(">Bf", 0xCA, 0.5), 1) == 0.5


@pytest.mark.parametrize("step", [1, 7, 16 * 1024 - 1])
def test_counting_does_not_depend_on_where_a_chunk_ends(step: int):
    """Texts full of what looks like structure, longer than a chunk."""
    texts = ['\\"[{,' * (4000 + offset) + "\\" * offset for offset in range(0, 3 * step, step)]
    data = json.dumps({"texts": texts}).encode()
    assert parse_json(data, 2 + len(texts)) == {"texts": texts}
    with pytest.raises(InvalidArgument, match="values"):
        parse_json(data, 1 + len(texts))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def count(value: Any) -> tuple[int, int]:
    """The values within a value, itself included, and those of them that are empty containers."""
    members = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    counts = [count(member) for member in members]
    empty = isinstance(value, dict | list) and not members
    return 1 + sum(total for total, _ in counts), empty + sum(empties for _, empties in counts)


@settings(deadline=None, derandomize=True)
@given(VALUES, st.booleans(), st.sampled_from([None, 3]))
def test_any_value_is_counted_and_comes_back(value: Any, ascii_only: bool, indent: int | None):
    total, empties = count(value)
    data = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode()
    assert parse_json(data, total + empties + 20) == value, "20: long numbers need room"
    if total + empties > 1:
        with pytest.raises(InvalidArgument, match="values"):
            parse_json(data, total + empties - 1)


def test_every_legal_body_passes():
    named = {f"joint {index}": index / 3 for index in range(4096)}
    assert parse_body(JSON_TYPE, json.dumps({**FRAME, "proprio": named}, indent=4).encode()).proprio == named
    packed = {**FRAME, "image": bytes(48), "proprio": named}
    assert parse_body(MSGPACK_TYPES[1], msgpack.packb(packed)).proprio == named
    assert 2 * len(named) < MAX_VALUES


@pytest.mark.parametrize("kind", ["", "text/plain", "application/jsonx", "application"])
def test_other_types_are_not_read(kind: str):
    with pytest.raises(UnsupportedMedia):
        parse_body(kind, b"{}")
