"""Recorded sessions of robots' clients with the servers that they were written for, and the stub policy of each.

The bundle `wire` has them, as bytes of the wire with a manifest. They are decoded here without a codec of the service,
and compared with the manifest.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgpack
import numpy as np

from tests.oracles import oracle
from tests.service.frontends.recordings import comparable, described
from tests.stub_policy import stub_checkpoint, table_key

WIRE = "wire"
SESSIONS = ("openpi/libero", "openpi/aloha", "openvla/openvla", "openvla/oft")
TEXTS = ("prompt", "instruction")
RATE_HZ = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A request and its answer.

    what: in words. request, answer: bytes of the wire. status: of HTTP. images: [height, width, 3] by the client's name
    of each, the last one where names are nested, and state: vectors likewise, as they were sent; nothing where the
    request is no observation. actions: [horizon, dims], or [dims] of a single one, in the dtype of the wire; None where
    the original rejected.
    """

    what: str
    request: bytes
    answer: bytes
    status: int | None = None
    images: Mapping[str, np.ndarray] = field(default_factory=dict)
    state: Mapping[str, np.ndarray] = field(default_factory=dict)
    instruction: str = ""
    actions: np.ndarray | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedSession:
    """A session. greeting: bytes that the server sent first, b"" where it waited for a request."""

    name: str
    greeting: bytes
    exchanges: tuple[Exchange, ...]

    @property
    def answered(self) -> list[Exchange]:
        """Those with actions."""
        return [each for each in self.exchanges if each.actions is not None]


def recorded_session(name: str) -> RecordedSession:
    """Read one of SESSIONS; mark the test with `@pytest.mark.oracle("wire")`."""
    folder = oracle(WIRE) / name
    messages = json.loads((folder / "manifest.json").read_text())["messages"]
    greeting = (folder / messages.pop(0)["file"]).read_bytes() if messages[0]["from"] == "server" else b""
    pairs = zip(messages[::2], messages[1::2], strict=True)
    return RecordedSession(name=name, greeting=greeting, exchanges=tuple(_exchange(folder, *pair) for pair in pairs))


def recorded_checkpoint(folder: Path, session: RecordedSession, **changes: Any) -> Path:
    """Write the stub policy of a session, which answers each recorded observation as the original did; its path.

    Its cameras and vectors have the client's names, and the sizes of the recording. changes: as of `stub_checkpoint`.
    """
    first = session.answered[0]
    rows = {table_key(next(iter(each.images.values()))): np.atleast_2d(each.actions) for each in session.answered}
    horizon, dims = next(iter(rows.values())).shape
    made: dict[str, Any] = {
        "cameras": {name: (image.shape[1], image.shape[0]) for name, image in first.images.items()},
        "state": {name: vector.size for name, vector in first.state.items()},
        "actions": dims,
        "horizon": horizon,
        "control_rate_hz": RATE_HZ,
        "unnorm_keys": ("bridge_orig",),
        "table": rows,
    }
    return stub_checkpoint(folder, **{**made, **changes})


def _exchange(folder: Path, sent: Mapping[str, Any], answered: Mapping[str, Any]) -> Exchange:
    request, answer = ((folder / each["file"]).read_bytes() for each in (sent, answered))
    images, state, instruction = {}, {}, ""
    for name, value in _leaves(_decoded(request)):
        if isinstance(value, np.ndarray):
            if value.dtype == np.uint8:
                images[name] = value if value.shape[2] == 3 else np.ascontiguousarray(value.transpose(1, 2, 0))
            else:
                state[name] = value
        elif name in TEXTS:
            instruction = value
    found = _decoded(answer)
    for said, read in ((sent, _decoded(request)), (answered, found)):
        assert "content" not in said or described(read) == comparable(said["content"]), said["file"]
    if isinstance(found, dict):
        found = found.get("actions")
    actions = np.asarray(found) if isinstance(found, np.ndarray | list) else None
    return Exchange(
        what=sent["what"],
        request=request,
        answer=answer,
        status=answered.get("status"),
        images=images,
        state=state,
        instruction=instruction,
        actions=actions,
    )


def _leaves(value: Any) -> Iterator[tuple[str, Any]]:
    for name, each in value.items() if isinstance(value, dict) else ():
        yield from _leaves(each) if isinstance(each, dict) else [(name, each)]


def _decoded(data: bytes) -> Any:
    """msgpack with numpy arrays, JSON with numpy arrays, or None for what is neither."""
    try:
        value = json.loads(data, object_hook=_of_json)
    except ValueError:
        try:
            return msgpack.unpackb(data, object_hook=_of_msgpack, strict_map_key=False)
        except (ValueError, msgpack.UnpackException):
            return None
    inner = value.get("encoded") if isinstance(value, dict) else value
    if isinstance(inner, str) and inner.startswith(("{", "[")):
        return _decoded(inner.encode())
    return value


def _of_msgpack(value: dict[Any, Any]) -> Any:
    if b"__ndarray__" in value:
        return np.frombuffer(value[b"data"], value[b"dtype"]).reshape(value[b"shape"])
    return np.dtype(value[b"dtype"]).type(value[b"data"]) if b"__npgeneric__" in value else value


def _of_json(value: dict[str, Any]) -> Any:
    if "__numpy__" not in value:
        return value
    return np.frombuffer(base64.b64decode(value["__numpy__"]), value["dtype"]).reshape(value["shape"])
