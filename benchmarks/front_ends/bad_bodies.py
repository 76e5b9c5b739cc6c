"""Bad bodies of POST /act, by kind. Each kind is made from a good body of OpenVLA-OFT and a random generator."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.front_ends.openpi_robot import NUMBERS
from edgeflow.service.frontends.numpy_json import array_json

Body = dict[str, Any]
IMAGE, WRIST, STATE, TEXT = "full_image", "wrist_image", "state", "instruction"
MOST_BYTES = 4 * (1 << 20) * 4 // 3 + (64 << 10)  # largest body with default limits


@dataclass(frozen=True, slots=True)
class BadBody:
    """A kind."""

    make: Callable[[Body, random.Random], bytes]
    field: str
    """The field that the rejection must name."""


def _plain(change: Callable[[Body, random.Random], Any], field: str) -> BadBody:
    """A changed body, in half of the cases encoded twice."""

    def make(body: Body, chance: random.Random) -> bytes:
        text = json.dumps(change(body, chance))
        return (json.dumps({"encoded": text}) if chance.random() < 0.5 else text).encode()

    return BadBody(make, field)


def _with(key: str, value: Callable[[random.Random], Any], field: str = "") -> BadBody:
    return _plain(lambda body, chance: {**body, key: value(chance)}, field or key)


def _without(*keys: str, field: str) -> BadBody:
    return _plain(lambda body, _: {key: value for key, value in body.items() if key not in keys}, field)


def _array(kind: str, shape: Any, data: Any, **more: Any) -> dict[str, Any]:
    text = base64.b64encode(data).decode() if isinstance(data, bytes) else data
    return {"__numpy__": text, "dtype": kind, "shape": shape, **more}


def _zeros(*shape: int, kind: Any = np.uint8) -> dict[str, Any]:
    return array_json(np.zeros(shape, kind))


def _state(chance: random.Random, number: float) -> dict[str, Any]:
    state = np.zeros(NUMBERS)
    state[chance.randrange(NUMBERS)] = number
    return array_json(state)


def _cut(body: Body, chance: random.Random) -> bytes:
    whole = json.dumps(body).encode()
    return whole[: chance.randrange(1, len(whole))]


def _groot(**changed: Any) -> BadBody:
    members = {
        "video.image": _zeros(1, 8, 8, 3),
        "state.state": _zeros(1, NUMBERS, kind=np.float64),
        "annotation.task": ["go"],
        **changed,
    }
    return _plain(lambda *_: {"observation": members}, "observation")


KINDS: dict[str, BadBody] = {
    "garbage": BadBody(lambda _, chance: chance.randbytes(chance.randrange(1, 300)), "body"),
    "nothing": BadBody(lambda *_: b"", "body"),
    "cut off": BadBody(_cut, "body"),
    "other bytes": BadBody(lambda *_: b'{"image": "\xff"}', "body"),
    "no object": BadBody(lambda _, chance: json.dumps(chance.choice([None, 1, "x", [1]])).encode(), "body"),
    "NaN as a word": BadBody(lambda *_: b'{"full_image": NaN}', "body"),
    "key twice": BadBody(lambda *_: b'{"image": 1, "image": 2}', "body"),
    "too deep": BadBody(lambda _, chance: b'{"image": ' + b"[" * chance.randrange(50, 5000), "body"),
    "too many values": BadBody(lambda *_: b'{"image": [' + b"0," * 270_000 + b"0]}", "body"),
    "too many keys": BadBody(lambda *_: b"{" + b",".join(b'"%x":0' % key for key in range(130_000)) + b"}", "body"),
    "too many bytes": BadBody(lambda *_: b" " * (MOST_BYTES + 1), "body"),
    "encoded of no text": BadBody(lambda *_: b'{"encoded": 5}', "encoded"),
    "encoded of garbage": BadBody(lambda *_: b'{"encoded": "{"}', "encoded"),
    "encoded of no object": BadBody(lambda *_: b'{"encoded": "[1]"}', "encoded"),
    "encoded beside others": BadBody(lambda *_: b'{"encoded": "{}", "image": 1}', "encoded"),
    "encoded three times": BadBody(lambda *_: json.dumps({"encoded": json.dumps({"encoded": "{}"})}).encode(), ""),
    "no dialect": _without(IMAGE, field="image"),
    "two dialects": _with("image", lambda _: _zeros(8, 8, 3), IMAGE),
    "unknown key of OpenVLA": _plain(
        lambda body, _: {"image": body[IMAGE], TEXT: body[TEXT], "temperature": 1}, "temperature"
    ),
    "unknown key of GR00T": _groot(noise=[1]),
    "GR00T without steps": _groot(**{"video.image": _zeros(8, 8, 3)}),
    "GR00T without a text": _groot(**{"annotation.task": 5}),
    "camera missing": _without(WRIST, field=""),
    "state missing": _without(STATE, field=""),
    "instruction missing": _without(TEXT, field=TEXT),
    "instruction of a number": _with(TEXT, lambda _: 5),
    "empty instruction": _with(TEXT, lambda _: ""),
    "instruction too long": _with(TEXT, lambda _: "go " * 2000),
    "instruction of half a character": _with(TEXT, lambda _: "\ud800"),
    "unnorm_key of a number": _with("unnorm_key", lambda _: 5),
    "unknown unnorm_key": _with("unnorm_key", lambda _: "nobody's"),
    "image of another type": _with(
        IMAGE, lambda chance: _zeros(8, 8, 3, kind=chance.choice(["<i8", "<i4", "<u2", "|b1", "|i1"]))
    ),
    "image of another shape": _with(
        IMAGE, lambda chance: _zeros(*chance.choice([(5, 5), (8, 8, 4), (1, 8, 8, 3), (0, 8, 3)]))
    ),
    "image beyond 1": _with(IMAGE, lambda _: array_json(np.full((8, 8, 3), 1.5))),
    "image with NaN": _with(WRIST, lambda _: array_json(np.full((8, 8, 3), np.nan, np.float32))),
    "image too large": _with(WRIST, lambda _: _zeros(600, 600, 3)),
    "image of text": _with(IMAGE, lambda _: "picture"),
    "list of no bytes": _with(IMAGE, lambda chance: [[[chance.choice([256, -1, 1.5, 1 << 70, "x", None])] * 3]]),
    "ragged list": _with(IMAGE, lambda _: [[[0, 0, 0]], [[0, 0]]]),
    "NaN state": _with(STATE, lambda chance: _state(chance, np.nan)),
    "infinite state": _with(STATE, lambda chance: _state(chance, np.inf)),
    "huge state": _with(STATE, lambda chance: _state(chance, 1e30)),
    "state of another size": _with(STATE, lambda chance: [0.0] * chance.choice([1, NUMBERS - 1, NUMBERS + 1])),
    "state of booleans": _with(STATE, lambda _: _zeros(NUMBERS, kind=bool)),
    "state in rows": _with(STATE, lambda _: _zeros(1, NUMBERS, kind=np.float64)),
    "object array": _with(IMAGE, lambda chance: _array(chance.choice(["|O", "O", "object"]), [1], b"cos\nsystem\n")),
    "void array": _with(STATE, lambda chance: _array(chance.choice(["|V8", "[('a', '<f4')]"]), [NUMBERS], bytes(64))),
    "array of no numbers": _with(STATE, lambda chance: _array(chance.choice(["<U2", "<M8[ns]"]), [8], bytes(64))),
    "array of too few bytes": _with(IMAGE, lambda _: _array("|u1", [8, 8, 3], bytes(100))),
    "array of any size": _with(
        IMAGE, lambda chance: _array("|u1", chance.choice([[1 << 40, 3], [-1, 8, 3], "8", [1.5], None]), b"")
    ),
    "array of no base64": _with(IMAGE, lambda chance: _array("|u1", [1], chance.choice(["*", 5, None, ["AA=="]]))),
    "array without a type": _with(IMAGE, lambda _: {"__numpy__": "AA==", "shape": [1]}),
    "array with more keys": _with(IMAGE, lambda _: _array("|u1", [1], b"x", more=1)),
}
