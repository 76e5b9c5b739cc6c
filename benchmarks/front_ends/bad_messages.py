"""Bad messages to the openpi socket, by kind. Each kind is made from a good observation and a random generator."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import msgpack
import numpy as np

from benchmarks.front_ends.openpi_robot import CAMERAS, NUMBERS
from edgeflow.service.frontends.numpy_msgpack import ArrayCoding, pack

Observation = dict[str, Any]
Message = bytes | str | list[bytes]
"""One message; a list stands for its parts."""
IMAGE, WRIST = (f"observation/{name}" for name in CAMERAS)
STATE, PROMPT = "observation/state", "prompt"
TOO_BIG = 1009  # a code for closing
MOST_BYTES = 4 * (1 << 20) + (64 << 10)  # largest message with default limits


@dataclass(frozen=True, slots=True)
class BadMessage:
    """A kind."""

    make: Callable[[Observation, random.Random], Message]
    field: str
    """The field that the rejection must name."""
    closes: int = 0
    """The code with which the connection may end; 0 = it must stay open."""


def _packed(change: Callable[[Observation, random.Random], Observation | None], field: str) -> BadMessage:
    """An observation that is changed or replaced, and packed in any of the three encodings."""

    def make(observation: Observation, chance: random.Random) -> bytes:
        changed = change(observation, chance)
        return pack(observation if changed is None else changed, chance.choice(list(ArrayCoding)))

    return BadMessage(make, field)


def _with(key: str, value: Callable[[random.Random], Any], field: str = "") -> BadMessage:
    """An observation with another value of a key."""
    return _packed(lambda seen, chance: {**seen, key: value(chance)}, field or key)


def _without(*keys: str, field: str) -> BadMessage:
    return _packed(lambda seen, _: {key: value for key, value in seen.items() if key not in keys}, field)


def _array(key: str, fields: Callable[[random.Random], Iterable[dict[bytes, Any]]], field: str = "") -> BadMessage:
    """An observation with a map in place of an array, which it resembles."""

    def make(observation: Observation, chance: random.Random) -> bytes:
        whole = msgpack.unpackb(pack(observation, ArrayCoding.OPENPI), strict_map_key=False)
        whole[key] = chance.choice(list(fields(chance)))
        return bytes(msgpack.packb(whole))

    return BadMessage(make, field or key)


def _image(chance: random.Random, *shape: int, kind: Any = np.uint8) -> np.ndarray:
    return np.full(shape, chance.randrange(0, 2), kind)


def _state(chance: random.Random, number: float) -> np.ndarray:
    state = np.zeros(NUMBERS, np.float32)
    state[chance.randrange(NUMBERS)] = number
    return state


def _openpi(kind: str, shape: list[int], data: bytes) -> dict[bytes, Any]:
    return {b"__ndarray__": True, b"data": data, b"dtype": kind, b"shape": shape}


def _package(kind: str, letter: bytes, shape: list[int], data: bytes) -> dict[bytes, Any]:
    return {b"nd": True, b"type": kind, b"kind": letter, b"shape": shape, b"data": data}


def _cut(observation: Observation, chance: random.Random) -> bytes:
    whole = pack(observation, ArrayCoding.OPENPI)
    return whole[: chance.randrange(1, len(whole))]


PICKLE = b"cos\nsystem\n(S'true'\ntR."
KINDS: dict[str, BadMessage] = {
    "text": BadMessage(lambda _, chance: chance.choice(["hello", "", "{}", "reset", "\u0000"]), "message"),
    "garbage": BadMessage(lambda _, chance: chance.randbytes(chance.randrange(1, 300)), ""),
    "nothing": BadMessage(lambda *_: b"", "message"),
    "cut off": BadMessage(_cut, "message"),
    "bytes behind": BadMessage(
        lambda seen, chance: pack(seen, ArrayCoding.OPENPI) + chance.randbytes(chance.randrange(1, 9)), "message"
    ),
    "no map": BadMessage(lambda _, chance: msgpack.packb(chance.choice([None, 1, "x", [1], True])), "message"),
    "extension": BadMessage(lambda *_: msgpack.packb({"a": msgpack.ExtType(5, b"x")}), "message"),
    "key twice": BadMessage(lambda *_: b"\x82\xa1a\x01\xa1a\x02", "message"),
    "key of no text": BadMessage(lambda *_: msgpack.packb({1: 2}), "message"),
    "too deep": BadMessage(lambda _, chance: b"\x81\xa1a" + b"\x91" * chance.randrange(40, 400) + b"\x00", ""),
    "too many values": BadMessage(lambda *_: msgpack.packb({"a": [0] * 5000}), "message"),
    "too many values declared": BadMessage(lambda *_: b"\xdf\xff\xff\xff\xff", "message"),
    "camera missing": _without(WRIST, field="observation"),
    "cameras missing": _without(IMAGE, WRIST, field=""),
    "state missing": _without(STATE, field="observation"),
    "prompt missing": _without(PROMPT, field=PROMPT),
    "image of another type": _with(
        IMAGE, lambda chance: _image(chance, 8, 8, 3, kind=chance.choice(["i1", "u2", "i4", "i8", "?"]))
    ),
    "image beyond 1": _with(IMAGE, lambda _: np.full((8, 8, 3), 1.5, np.float32)),
    "image with NaN": _with(WRIST, lambda _: np.full((8, 8, 3), np.nan, np.float32)),
    "image of another shape": _with(
        IMAGE, lambda chance: _image(chance, *chance.choice([(5, 5), (8, 8, 4), (1, 8, 8, 3), (8, 8, 1)]))
    ),
    "empty image": _with(IMAGE, lambda _: np.zeros((0, 0, 3), np.uint8)),
    "image too large": _with(IMAGE, lambda chance: _image(chance, 600, 600, 3)),
    "image too long": _with(IMAGE, lambda chance: _image(chance, 1, 9000, 3)),
    "image of text": _with(IMAGE, lambda _: "picture", "observation"),
    "NaN state": _with(STATE, lambda chance: _state(chance, np.nan)),
    "infinite state": _with(STATE, lambda chance: _state(chance, chance.choice([np.inf, -np.inf]))),
    "huge state": _with(STATE, lambda chance: _state(chance, 1e30)),
    "state of another size": _with(
        STATE, lambda chance: np.zeros(chance.choice([1, NUMBERS - 1, NUMBERS + 1, 100])), "observation"
    ),
    "state of booleans": _with(STATE, lambda _: np.ones(NUMBERS, bool)),
    "state of text": _with(STATE, lambda _: ["1"] * NUMBERS, "observation"),
    "prompt of a number": _with(PROMPT, lambda _: 5),
    "empty prompt": _with(PROMPT, lambda _: ""),
    "prompt too long": _with(PROMPT, lambda _: "go " * 2000),
    "prompt of other bytes": _with(PROMPT, lambda _: b"\xff\xfe"),
    "prompt with a zero": _with(PROMPT, lambda _: "go\x00"),
    "unknown unnorm_key": _with("unnorm_key", lambda _: "nobody's"),
    "unknown endpoint": _with("endpoint", lambda chance: chance.choice(["go", "Infer", "", 5, None, ["infer"]])),
    "unknown type": _packed(lambda seen, _: {"type": "go", "request_id": "1", "payload": seen}, "type"),
    "payload of no map": _packed(lambda *_: {"type": "infer", "payload": [1]}, "payload"),
    "object array": _array(
        IMAGE, lambda _: [_openpi("|O", [1], PICKLE), _openpi("O", [1], PICKLE), _package("|O", b"O", [1], PICKLE)]
    ),
    "void array": _array(
        STATE,
        lambda _: [_openpi("|V8", [NUMBERS], bytes(64)), _package("|V8", b"V", [NUMBERS], bytes(64))],
    ),
    "array of records": _array(STATE, lambda _: [_openpi("[('a', '<f4')]", [NUMBERS], bytes(32))]),
    "array of no numbers": _array(
        STATE, lambda _: [_openpi(kind, [NUMBERS], bytes(64)) for kind in ("<U2", "<M8[ns]", "<c8", "|S8", "x" * 5000)]
    ),
    "array of too few bytes": _array(IMAGE, lambda _: [_openpi("|u1", [8, 8, 3], bytes(100))]),
    "array of any size": _array(
        IMAGE, lambda _: [_openpi("|u1", shape, b"") for shape in ([1 << 40, 1 << 40, 3], [0, 1 << 62], [-1, 8, 3])]
    ),
    "array of many dimensions": _array(IMAGE, lambda _: [_openpi("|u1", [1] * 40, b"x")]),
    "array with more keys": _array(IMAGE, lambda _: [{**_openpi("|u1", [1], b"x"), b"more": 1}]),
    "number of another type": _array(
        "noise_scale", lambda _: [{b"__npgeneric__": True, b"data": "x", b"dtype": "<f4"}], "noise_scale"
    ),
    "too many bytes": BadMessage(lambda *_: bytes(MOST_BYTES + 1), "", TOO_BIG),
    "too many parts": BadMessage(lambda *_: [b"\x81"] + [b"\xa1"] * 2000, "", TOO_BIG),
}
