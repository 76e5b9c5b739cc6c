"""Reading of the configuration file: one JSON object, in which no key is given twice."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from edgeflow_client.errors import ConfigError

MAX_CONFIG_BYTES = 1 << 20
MOST_SHOWN = 200  # characters of a key's path in a message


def read_config(path: Path) -> dict[str, Any]:
    """The values of a configuration file; ConfigError in one line."""
    try:
        with path.open("rb") as stream:  # a pipe is welcome: `--config <(jq … base.json)`
            text = stream.read(MAX_CONFIG_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"config: cannot read {path}: {error.strerror}") from error
    if len(text) > MAX_CONFIG_BYTES:
        raise ConfigError(f"config: {path} exceeds the limit of {MAX_CONFIG_BYTES} bytes")
    try:
        values = json.loads(text, object_pairs_hook=_object)
        repeated = next(_repeated(values, ""), None)
    except json.JSONDecodeError as error:
        raise ConfigError(f"config: {path} line {error.lineno} column {error.colno}: {error.msg}") from error
    except (UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"config: {path} is not valid JSON in UTF-8") from error
    if repeated is not None:
        raise ConfigError(f"config: {path} gives {repeated[-MOST_SHOWN:]} twice: remove one of them")
    if not isinstance(values, dict):
        raise ConfigError(f"config: {path} must hold one JSON object")
    return values


class _Repeating(dict[str, Any]):
    """An object with a key that is given more than once, of which JSON would take the last value."""

    key: str


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object, before it is known where it stands."""
    values = dict(pairs)
    if len(values) == len(pairs):
        return values
    marked = _Repeating(values)
    marked.key = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
    return marked


def _repeated(value: Any, path: str) -> Iterator[str]:
    """Dotted paths of repeated keys, from the outside in."""
    if isinstance(value, _Repeating):
        yield f"{path}.{value.key}".removeprefix(".")
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _repeated(inner, f"{path}.{key}")
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _repeated(inner, f"{path}[{index}]")
