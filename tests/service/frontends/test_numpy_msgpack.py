"""Arrays in msgpack: recorded messages are read and written byte for byte, and bad ones are rejected by name."""

from __future__ import annotations

from functools import reduce
from random import Random
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as np_st
from numpy.typing import NDArray

from edgeflow.service.frontends.arrays import TYPES
from edgeflow.service.frontends.numpy_msgpack import ArrayCoding, pack, unpack
from edgeflow_client.errors import InvalidArgument
from tests.service.frontends.recordings import WireMessage, comparable, described, values_of, wire_messages

MOST = 1000
RECORDED = [each for each in wire_messages("wire/openpi") if each.file.endswith(".bin")]
recorded = pytest.mark.parametrize("message", RECORDED, ids=str)


@pytest.mark.oracle("wire/openpi")
@recorded
def test_a_recorded_message_is_read_as_the_original_reads_it(message: WireMessage):
    value, coding = unpack(message.data, MOST)
    assert described(value) == comparable(message.content) and coding is ArrayCoding.OPENPI
    assert all(listed == read for listed, read in values_of(message.content, value))


@pytest.mark.oracle("wire/openpi")
def test_recorded_answers_are_written_byte_for_byte():
    answers = [each for each in RECORDED if each.sender == "server"]
    assert answers
    for each in answers:
        assert pack(*unpack(each.data, MOST)) == each.data


def test_arrays_are_views_of_what_came():
    value, _ = unpack(pack({"a": np.arange(6, dtype="u1").reshape(2, 3)}, ArrayCoding.OPENPI), MOST)
    assert value["a"].base is not None and not value["a"].flags.writeable and value["a"].flags.c_contiguous


A = np.arange(6, dtype="<f4").reshape(1, 2, 3)
WRITTEN = {
    ArrayCoding.OPENPI: {b"__ndarray__": True, b"data": A.tobytes(), b"dtype": "<f4", b"shape": (1, 2, 3)},
    ArrayCoding.VLLM: {b"nd": True, b"data": A.tobytes(), b"type": "<f4", b"kind": "f", b"shape": (1, 2, 3)},
    ArrayCoding.PACKAGE: {b"nd": True, b"type": "<f4", b"kind": b"", b"shape": (1, 2, 3), b"data": A.tobytes()},
}
coding = pytest.mark.parametrize("coding", ArrayCoding)


@coding
@pytest.mark.parametrize("view", [A, A.astype(">f4").astype("<f4"), np.asfortranarray(A), A[:, ::-1][:, ::-1]])
def test_each_coding_is_written_as_its_writer_does(coding: ArrayCoding, view: NDArray[Any]):
    """The keys as bytes and in their order; msgpack itself writes the rest."""
    assert pack({"actions": view, "n": [1, 0.5, None, True, "x"]}, coding) == msgpack.packb(
        {"actions": WRITTEN[coding], "n": [1, 0.5, None, True, "x"]}
    )


@coding
@pytest.mark.parametrize("text_keys", [False, True])
def test_keys_are_bytes_or_text(coding: ArrayCoding, text_keys: bool):
    record = {key.decode() if text_keys else key: each for key, each in WRITTEN[coding].items()}
    value, came = unpack(msgpack.packb({b"images": [record, {"a": record}]}), MOST)
    assert came is coding and (value["images"][0] == A).all() and (value["images"][1]["a"] == A).all()


SCALARS = {
    "openpi": ({b"__npgeneric__": True, b"data": 1.5, b"dtype": "<f4"}, 1.5, ArrayCoding.OPENPI),
    "openpi's boolean": ({b"__npgeneric__": True, b"data": True, b"dtype": "|b1"}, True, ArrayCoding.OPENPI),
    "vllm": ({b"nd": False, b"data": b"\x07\0", b"type": "<i2", b"kind": "i"}, 7, ArrayCoding.VLLM),
    "package": ({b"nd": False, b"type": ">i2", b"data": b"\0\x07"}, 7, ArrayCoding.PACKAGE),
    "an older package": ({b"nd": True, b"type": "|u1", b"shape": [], b"data": b"\x07"}, 7, ArrayCoding.PACKAGE),
}


@pytest.mark.parametrize(("record", "number", "coding"), SCALARS.values(), ids=SCALARS.keys())
def test_scalars_are_numbers(record: dict[bytes, Any], number: float, coding: ArrayCoding):
    assert unpack(msgpack.packb({"t": record}), MOST) == ({"t": number}, coding)


def test_plain_maps_that_resemble_arrays_are_maps():
    plain = {"data": 1, "dtype": "<f4", "nd": {"nd": True, "type": 0}, "b": b"\xff"}
    assert unpack(msgpack.packb(plain), MOST) == (plain, ArrayCoding.OPENPI)


NUMBERS = sorted({kind.str for kind in TYPES.values()})
ARRAYS = st.sampled_from(NUMBERS).flatmap(
    lambda kind: np_st.arrays(np.dtype(kind), np_st.array_shapes(min_dims=0, max_dims=8, min_side=0, max_side=3))
)
PLAIN = st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats(allow_nan=False) | st.text()
KEYS = st.text().filter(lambda key: key not in ("__ndarray__", "__npgeneric__", "nd"))
VALUES = st.recursive(PLAIN | ARRAYS, lambda each: st.lists(each, max_size=4) | st.dictionaries(KEYS, each, max_size=4))


@given(VALUES, st.sampled_from(ArrayCoding))
def test_any_value_comes_back(value: Any, coding: ArrayCoding):
    back, _ = unpack(pack(value, coding), 100_000)
    assert described(back) == described(value)


def openpi(**changes: Any) -> dict[str, Any]:
    return {"__ndarray__": True, "data": bytes(24), "dtype": "<f4", "shape": [2, 3], **changes}


def nd(**changes: Any) -> dict[str, Any]:
    return {"nd": True, "type": "<f4", "kind": "f", "shape": [2, 3], "data": bytes(24), **changes}


def generic(**changes: Any) -> dict[str, Any]:
    return {"__npgeneric__": True, "data": 1.5, "dtype": "<f4", **changes}


BAD_TYPES = [
    "|O",
    "O",
    "|V8",
    "<c8",
    "<M8[ns]",
    "<m8",
    "<U4",
    "|S4",
    "<f16",
    "<f4,<f4",
    "f4",
    "",
    "(2,)<f4",
    "i" * 9999,
]
REJECTED = {
    **{f"type {text[:9]}": (openpi(dtype=text), "ARRAY_TYPE") for text in BAD_TYPES},
    **{f"nd of type {text[:9]}": (nd(type=text, kind=""), "ARRAY_TYPE") for text in BAD_TYPES},
    "a record": (nd(type=[["a", "<f4"]], kind=b"V"), "ARRAY_TYPE"),
    "an object": (nd(type="<f4", kind=b"O"), "ARRAY_TYPE"),
    "another kind": (nd(kind="i"), "ARRAY_TYPE"),
    "no type": (openpi(dtype=None), "ARRAY_TYPE"),
    "a negative size": (openpi(shape=[-2, -3]), "ARRAY_SHAPE"),
    "a boolean size": (openpi(shape=[6, True]), "ARRAY_SHAPE"),
    "a fraction as size": (openpi(shape=[2.0, 3]), "ARRAY_SHAPE"),
    "a text as shape": (openpi(shape="23"), "ARRAY_SHAPE"),
    "a number as shape": (openpi(shape=6), "ARRAY_SHAPE"),
    "too few bytes": (openpi(data=bytes(23)), "ARRAY_SHAPE"),
    "too many bytes": (openpi(data=bytes(25)), "ARRAY_SHAPE"),
    "a shape beyond 64 bits": (openpi(shape=[1 << 63] * 4), "ARRAY_SHAPE"),
    "a product that is 24 in 64 bits": (openpi(dtype="|u1", shape=[(1 << 61) + 3, 8]), "ARRAY_SHAPE"),
    "an empty array of any size": (openpi(data=b"", shape=[0, 1 << 62, 1 << 62]), "ARRAY_SHAPE"),
    "nine dimensions": (openpi(data=bytes(4), shape=[1] * 9), "ARRAY_SHAPE"),
    "text as data": (openpi(data="x" * 24), "BODY_FIELD"),
    "numbers as data": (openpi(data=[0.0] * 6), "BODY_FIELD"),
    "no shape": ({key: each for key, each in openpi().items() if key != "shape"}, "BODY_FIELD"),
    "nd without a shape": ({key: each for key, each in nd().items() if key != "shape"}, "BODY_FIELD"),
    "another key": (openpi(order="F"), "BODY_FIELD"),
    "a marker that is no boolean": (openpi(__ndarray__=1), "BODY_FIELD"),
    "nd that is no boolean": (nd(nd=2), "BODY_FIELD"),
    "a scalar with a shape": (nd(nd=False, data=bytes(4)), "BODY_FIELD"),
    "a scalar of several numbers": ({"nd": False, "type": "<f4", "data": bytes(8)}, "ARRAY_SHAPE"),
    "a scalar that is text": (generic(data="1.5"), "ARRAY_TYPE"),
    "a scalar of another type": (generic(dtype="<i4"), "ARRAY_TYPE"),
    "a scalar that is an object": (generic(dtype="|O"), "ARRAY_TYPE"),
    "a scalar that is an array": (generic(data=openpi()), "ARRAY_TYPE"),
    "nesting": (reduce(lambda inner, _: [inner], range(32), 1), "BODY_DEPTH"),
}


@pytest.mark.parametrize(("value", "reason"), REJECTED.values(), ids=REJECTED.keys())
def test_a_bad_array_is_rejected_by_its_path(value: Any, reason: str):
    with pytest.raises(InvalidArgument) as caught:
        unpack(msgpack.packb({"ok": WRITTEN[ArrayCoding.OPENPI], "images": {"cam_high": value}}), MOST)
    assert (caught.value.field, caught.value.reason) == ("images.cam_high", reason)
    assert len(caught.value.text) < 300 and caught.value.text.isprintable()


MESSAGES = {
    "nothing": (b"", "BODY_UNPARSABLE"),
    "half": (msgpack.packb(openpi())[:-1], "BODY_UNPARSABLE"),
    "more": (msgpack.packb(openpi()) + b"\0", "BODY_UNPARSABLE"),
    "an extension": (b"\xc7\x00\x01", "BODY_UNPARSABLE"),
    "a timestamp": (b"\xd6\xff\x00\x00\x00\x00", "BODY_UNPARSABLE"),
    "numbers as keys": (msgpack.packb({1: 1}), "BODY_UNPARSABLE"),
    "bytes beyond ASCII as keys": (msgpack.packb({b"\xff": 1}), "BODY_UNPARSABLE"),
    "a key twice": (b"\x82\xa1k\x01\xa1k\x01", "BODY_UNPARSABLE"),
    "a key as text and as bytes": (b"\x82\xa1k\x01\xc4\x01k\x01", "BODY_UNPARSABLE"),
    "text that is not UTF-8": (b"\xa1\xff", "BODY_UNPARSABLE"),
    "many values": (msgpack.packb([0] * MOST), "BODY_VALUES"),
    "four billion values": (b"\xdd\xff\xff\xff\xff", "BODY_VALUES"),
    "an array alone": (msgpack.packb(openpi(shape=[7])), "ARRAY_SHAPE"),
}


@pytest.mark.parametrize(("data", "reason"), MESSAGES.values(), ids=MESSAGES.keys())
def test_a_bad_message_is_rejected_as_a_whole(data: bytes, reason: str):
    with pytest.raises(InvalidArgument) as caught:
        unpack(data, MOST)
    assert (caught.value.field, caught.value.reason) == ("message", reason)


@pytest.mark.parametrize("value", [np.array(["x"]), np.array([1j]), np.array([None]), np.zeros(1, "<f4,<f4"), object()])
def test_nothing_but_numbers_is_written(value: Any):
    with pytest.raises(TypeError, match="cannot write"):
        pack({"a": value}, ArrayCoding.OPENPI)


def mutated(data: bytes, rng: Random) -> bytes:
    """A real message with some bytes changed, cut out or repeated, mostly outside the pixels."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        first, last = rng.randrange(64), len(changed) - 1 - rng.randrange(64)
        at = max(rng.choice((first, last, rng.randrange(len(changed) or 1))), 0)
        new = rng.choice((b"", bytes([rng.randrange(256)]), changed[at : at + 9]))
        changed[at : at + rng.choice((0, 1, 1, 1, 8))] = new
    return bytes(changed) or b"\0"


def test_a_mutated_message_is_a_value_or_an_error():
    rng, read = Random(0), 0
    small = [pack({"image": A, "state": {"x": A[0, 0]}, "prompt": "go"}, each) for each in ArrayCoding]
    messages = [*small, msgpack.packb({"t": generic(), "n": SCALARS["package"][0]}), *(each.data for each in RECORDED)]
    for _ in range(6000):
        try:
            unpack(mutated(rng.choice(messages), rng), MOST)
            read += 1
        except InvalidArgument as error:
            assert error.text.isprintable()
    assert 300 < read < 5700
