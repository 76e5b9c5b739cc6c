"""Sessions recorded between real clients and the original servers: their messages, and what the originals read in them.

A bundle is a folder of `wire` among the oracles (tests/oracles.py). tests/recorded has those of openpi and OpenVLA too.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.oracles import oracle


@dataclass(frozen=True, slots=True)
class WireMessage:
    """One message as it went over the wire. content: as the original's own decoder read it; None for errors."""

    session: str
    file: str
    sender: str
    what: str
    data: bytes
    content: Any
    status: int | None

    def __str__(self) -> str:
        return f"{self.session}-{self.file}"


def wire_messages(bundle: str) -> list[WireMessage]:
    """All messages of a bundle's sessions, in the order of the wire; empty where the bundle is missing."""
    found = []
    for manifest in sorted(oracle(bundle).glob("*/manifest.json")):
        for each in json.loads(manifest.read_text())["messages"]:
            data = (manifest.parent / each["file"]).read_bytes()
            kept = each.get("content"), each.get("status")
            found.append(WireMessage(manifest.parent.name, each["file"], each["from"], each["what"], data, *kept))
    return found


def described(value: Any) -> Any:
    """A value as a manifest describes it, so that both can be compared."""
    if isinstance(value, dict):
        return {key: described(each) for key, each in value.items()}
    if isinstance(value, list):
        return [described(each) for each in value]
    if isinstance(value, bytes):
        return {"bytes": len(value), "sha256": hashlib.sha256(value).hexdigest()}
    if isinstance(value, np.ndarray):
        return {
            "dtype": value.dtype.str,
            "shape": list(value.shape),
            "sha256": hashlib.sha256(value.tobytes()).hexdigest(),
        }
    return value


def comparable(content: Any) -> Any:
    """A manifest's content in the form of `described`: without the values of arrays, and numpy's scalars as numbers."""
    if isinstance(content, dict):
        if content.keys() == {"scalar", "value"}:
            return content["value"]
        return {key: comparable(each) for key, each in content.items() if key != "values" or "sha256" not in content}
    if isinstance(content, list):
        return [comparable(each) for each in content]
    return content


def values_of(content: Any, value: Any) -> list[tuple[list[float], list[float]]]:
    """The values of arrays that a manifest lists, beside those that were read."""
    if isinstance(content, dict) and "values" in content and "sha256" in content:
        return [(content["values"], value.reshape(-1).tolist())]
    if isinstance(content, dict) and isinstance(value, dict):
        return [pair for key, each in content.items() for pair in values_of(each, value[key])]
    if isinstance(content, list) and isinstance(value, list):
        return [pair for each, part in zip(content, value, strict=True) for pair in values_of(each, part)]
    return []
