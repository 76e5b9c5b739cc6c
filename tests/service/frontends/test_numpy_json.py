"""Arrays in JSON: recorded bodies are read and written byte for byte, and bad ones are rejected by name."""

from __future__ import annotations

import base64
import json
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as np_st

from edgeflow.service.frontends.arrays import TYPES, as_array
from edgeflow.service.frontends.numpy_json import MAX_MEMBERS, answer_body, array_json, parse
from edgeflow_client.errors import InvalidArgument
from tests.service.frontends.recordings import WireMessage, comparable, described, values_of, wire_messages

MOST = 1000
RECORDED = [each for each in wire_messages("wire/openvla") if each.content is not None]
REQUESTS = [each for each in RECORDED if each.sender == "client" and "encoded beside" not in each.what]
ANSWERS = [each for each in RECORDED if each.sender == "server" and b"__numpy__" in each.data]


@pytest.mark.oracle("wire/openvla")
@pytest.mark.parametrize("message", REQUESTS, ids=str)
def test_a_recorded_body_is_read_as_the_original_reads_it(message: WireMessage):
    value, double = parse(message.data, MOST)
    assert described(value) == comparable(message.content) and double is (message.what == "double-encoded")
    assert all(listed == read for listed, read in values_of(message.content, value))


@pytest.mark.oracle("wire/openvla")
@pytest.mark.parametrize("message", ANSWERS, ids=str)
def test_a_recorded_answer_is_written_byte_for_byte(message: WireMessage):
    rows = message.content if isinstance(message.content, list) else [message.content]
    arrays = [np.array(each["values"], each["dtype"]).reshape(each["shape"]) for each in rows]
    value = arrays if isinstance(message.content, list) else arrays[0]
    assert answer_body(value, message.data[:1] == b'"') == message.data


NUMBERS = sorted({kind.str for kind in TYPES.values()})
ARRAYS = st.sampled_from(NUMBERS).flatmap(
    lambda kind: np_st.arrays(np.dtype(kind), np_st.array_shapes(min_dims=1, max_dims=8, min_side=0, max_side=3))
)
PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
KEYS = st.text().filter(lambda key: key not in ("__numpy__", "encoded"))
VALUES = st.recursive(PLAIN | ARRAYS, lambda each: st.dictionaries(KEYS, each, max_size=4))


@settings(max_examples=settings.default.max_examples // 3)  # each is large
@given(st.dictionaries(KEYS, VALUES, max_size=4), st.booleans())
def test_any_object_comes_back(value: dict[str, Any], double: bool):
    body = answer_body(value, double)
    back, was_double = parse(b'{"encoded":' + body + b"}" if double else body, 100_000)
    assert described(back) == described(value) and was_double is double


def test_an_array_without_dimensions_is_a_number():
    assert parse(json.dumps({"x": array_json(np.array(1.5))}).encode(), MOST) == ({"x": 1.5}, False)


def record(**changes: Any) -> dict[str, Any]:
    return {"__numpy__": base64.b64encode(bytes(24)).decode(), "dtype": "<f4", "shape": [2, 3], **changes}


REJECTED = {
    "an object's type": (record(dtype="|O"), "ARRAY_TYPE"),
    "a record's type": (record(dtype=[["a", "<f4"]]), "ARRAY_TYPE"),
    "text as type": (record(dtype="<U6"), "ARRAY_TYPE"),
    "too few bytes": (record(shape=[7]), "ARRAY_SHAPE"),
    "a boolean size": (record(shape=[6, True]), "ARRAY_SHAPE"),
    "sizes of 4000 digits": (record(shape=[int("9" * 4000)]), "ARRAY_SHAPE"),
    "no base64": (record(__numpy__="a" * 9), "BODY_FIELD"),
    "base64 with spaces": (record(__numpy__=" " + record()["__numpy__"]), "BODY_FIELD"),
    "base64 beyond ASCII": (record(__numpy__="é"), "BODY_FIELD"),
    "base64 of half a character": (record(__numpy__="\ud800"), "BODY_FIELD"),
    "a list as base64": (record(__numpy__=[0] * 24), "BODY_FIELD"),
    "no shape": ({key: each for key, each in record().items() if key != "shape"}, "BODY_FIELD"),
    "another key": (record(order="F"), "BODY_FIELD"),
}


@pytest.mark.parametrize(("value", "reason"), REJECTED.values(), ids=REJECTED.keys())
@pytest.mark.parametrize("double", [False, True])
def test_a_bad_array_is_rejected_by_its_path(value: Any, reason: str, double: bool):
    body: Any = {"ok": record(), "observation": {"video.top": value}}
    with pytest.raises(InvalidArgument) as caught:
        parse(json.dumps({"encoded": json.dumps(body)} if double else body).encode(), 10 * MOST)
    assert (caught.value.field, caught.value.reason) == ("observation.video.top", reason)
    assert len(caught.value.text) < 300 and caught.value.text.isprintable()


BODIES = {
    "nothing": ("", "body", "BODY_UNPARSABLE"),
    "garbage": ("\0garbage", "body", "BODY_UNPARSABLE"),
    "a list": ("[]", "body", "BODY_SHAPE"),
    "NaN": ('{"state": NaN}', "body", "BODY_UNPARSABLE"),
    "a key twice": ('{"image": 1, "image": 1}', "body", "BODY_UNPARSABLE"),
    "many values": (json.dumps({"image": [0] * MOST}), "body", "BODY_VALUES"),
    "encoded beside another key": ('{"encoded": "{}", "x": 1}', "encoded", "BODY_FIELD"),
    "encoded that is no text": ('{"encoded": {}}', "encoded", "BODY_FIELD"),
    "encoded garbage": ('{"encoded": "garbage"}', "encoded", "BODY_UNPARSABLE"),
    "an encoded list": ('{"encoded": "[]"}', "encoded", "BODY_SHAPE"),
    "half a character, encoded": ('{"encoded": "\\ud800"}', "encoded", "BODY_UNPARSABLE"),
    "many values, encoded": (json.dumps({"encoded": json.dumps([0] * MOST)}), "encoded", "BODY_VALUES"),
    "depth, encoded": (json.dumps({"encoded": "[" * 99}), "encoded", "BODY_DEPTH"),
}


@pytest.mark.parametrize(("body", "field", "reason"), BODIES.values(), ids=BODIES.keys())
def test_a_bad_body_is_rejected(body: str, field: str, reason: str):
    with pytest.raises(InvalidArgument) as caught:
        parse(body.encode(), MOST)
    assert (caught.value.field, caught.value.reason) == (field, reason)


@pytest.mark.oracle("wire/openvla")
@pytest.mark.parametrize(
    ("body", "field"),
    [
        (json.dumps({f"key{index}": 0 for index in range(MAX_MEMBERS)}), "body"),
        (json.dumps({"encoded": json.dumps([{}] * MAX_MEMBERS)}), "body"),
        (json.dumps({"encoded": json.dumps([{}] * 2 * MAX_MEMBERS)}).replace("{}", "\\u007b}"), "encoded"),
    ],
    ids=["keys", "objects, encoded", "objects, encoded and hidden"],
)
def test_objects_and_keys_are_few_whatever_the_number_of_values(body: str, field: str):
    with pytest.raises(InvalidArgument, match=str(MAX_MEMBERS)) as caught:
        parse(body.encode(), 1 << 18)
    assert (caught.value.field, caught.value.reason) == (field, "BODY_VALUES")
    parse(json.dumps({"image": [0] * 10 * MAX_MEMBERS}).encode(), 1 << 18)


def test_recorded_bodies_encoded_beside_another_key_are_rejected():
    for each in wire_messages("wire/openvla"):
        if each.what.startswith("encoded beside"):
            with pytest.raises(InvalidArgument, match="encoded: must be a text, and the only key"):
                parse(each.data, MOST)


def test_nested_lists_are_arrays():
    image = Random(0).choices(range(256), k=24)
    nested = np.array(image).reshape(2, 4, 3).tolist()
    pixels = as_array(nested, "image")
    assert (pixels.dtype, pixels.shape, pixels.reshape(-1).tolist()) == (np.int64, (2, 4, 3), image)
    assert as_array([1, 0.5], "state").tolist() == [1.0, 0.5]
    assert (as_array(3, "state").shape, as_array([], "state").shape, as_array([[], []], "x").shape) == (
        (),
        (0,),
        (2, 0),
    )
    given = np.zeros(2)
    assert as_array(given, "state") is given


NO_ARRAYS = {
    "lists that differ": ([[1, 2], [3]], "ARRAY_SHAPE"),
    "numbers beside lists": ([[1], 2], "ARRAY_TYPE"),
    "nine levels": ([[[[[[[[[1]]]]]]]]], "ARRAY_SHAPE"),
    "text": (["1.5", "x" * 99_999], "ARRAY_TYPE"),
    "a text alone": ("1", "ARRAY_TYPE"),
    "nothing": (None, "ARRAY_TYPE"),
    "nothing in a list": ([1.0, None], "ARRAY_TYPE"),
    "booleans": ([True, 1], "ARRAY_TYPE"),
    "an object": ({"a": 1}, "ARRAY_TYPE"),
    "65 bits": ([1 << 64], "ARRAY_TYPE"),
    "an integer beyond floats": ([0.5, 10**400], "ARRAY_TYPE"),
}


@pytest.mark.parametrize(("value", "reason"), NO_ARRAYS.values(), ids=NO_ARRAYS.keys())
def test_other_lists_are_no_arrays(value: Any, reason: str):
    with pytest.raises(InvalidArgument) as caught:
        as_array(value, "observation.state")
    assert (caught.value.field, caught.value.reason) == ("observation.state", reason)
