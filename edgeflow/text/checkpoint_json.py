"""The JSON files of a checkpoint: reading, typed access to their objects, and the special tokens that they name."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from edgeflow_client.errors import CheckpointError
from edgeflow_client.files import read_regular

MAX_JSON_BYTES = 64 << 20
TRAINED = ("pretrained_model", "last/pretrained_model", "checkpoints/last/pretrained_model")
"""Where LeRobot's training puts a checkpoint, below the folder of a step, of all steps, or of the training."""
LARGEST = 1 << 16
"""The largest size that a checkpoint may state."""
LARGEST_FLOAT = sys.float_info.max


def read_json(path: Path, *, required: bool = True) -> dict[str, Any]:
    """Read a JSON object; a missing optional file counts as empty."""
    if not path.is_file():
        if required:
            raise CheckpointError(f"{path.parent} has no {path.name}: {where_it_is(path.parent, path.name)}")
        return {}
    values = read_json_value(path)
    if not isinstance(values, dict):
        raise CheckpointError(f"{path} must hold a JSON object: copy the checkpoint again")
    return values


def where_it_is(directory: Path, name: str) -> str:
    """Advice for a folder without the file of a checkpoint: LeRobot writes that below the folder of a training."""
    for nested in TRAINED:
        if (directory / nested / name).is_file():
            return f"give {directory / nested}"
    return "give the directory of a checkpoint"


def read_json_value(path: Path) -> Any:
    """Read a JSON value of bounded size."""
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise CheckpointError(f"{path} has more than {MAX_JSON_BYTES} bytes: too large for a configuration file")
        return json.loads(read_regular(path, MAX_JSON_BYTES).decode())
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not readable JSON: copy the checkpoint again") from error


class Fields:
    """An object of a JSON file. CheckpointError names the file, the key, what it has and what is served.

    where: the file and the keys that lead to the object, as in messages.
    """

    def __init__(self, where: str, values: Any) -> None:
        if not isinstance(values, Mapping):
            raise CheckpointError(f"{where} must be an object: copy the checkpoint again")
        self.where = where
        self._values = values

    def __contains__(self, key: str) -> bool:
        return self._values.get(key) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def size(self, key: str, default: int | None = None) -> int:
        """An integer, 1 to LARGEST."""
        return self._checked_size(key, self._value(key, default))

    def shape(self, key: str, dims: int) -> tuple[int, ...]:
        """A list of `dims` sizes."""
        value = self._value(key, None)
        if not isinstance(value, list) or len(value) != dims:
            raise CheckpointError(f"{self.name(key)} is {value!r}; served: a list of {dims} sizes")
        return tuple(self._checked_size(key, each) for each in value)

    def count(self, key: str) -> int:
        """An integer from 0 on."""
        return self._checked_count(key, self._value(key, None))

    def whole_numbers(self, key: str) -> tuple[int, ...]:
        """A list of integers from 0 on."""
        value = self._value(key, None)
        if not isinstance(value, list):
            raise CheckpointError(f"{self.name(key)} is {repr(value)[:60]}; served: a list of integers")
        return tuple(self._checked_count(key, each) for each in value)

    def plain(self, key: str) -> dict[str, Any]:
        """The object itself."""
        value = self._value(key, None)
        if not isinstance(value, dict):
            raise CheckpointError(f"{self.name(key)} must be an object: copy the checkpoint again")
        return value

    def number(self, key: str, default: float | None) -> float:
        """A finite number."""
        value = self._value(key, default)
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not -LARGEST_FLOAT <= value <= LARGEST_FLOAT
        ):
            raise CheckpointError(f"{self.name(key)} is {repr(value)[:60]}; served: a number")
        return float(value)

    def positive(self, key: str, default: float | None) -> float:
        """A finite number above 0."""
        value = self.number(key, default)
        if value <= 0:
            raise CheckpointError(f"{self.name(key)} is {value!r}; served: a number above 0")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise CheckpointError(f"{self.name(key)} is {value!r}; served: true and false")
        return value

    def choice(self, key: str, choices: Sequence[str], default: str | None = None) -> str:
        """One of several texts."""
        value = self._value(key, default)
        if value not in choices:
            raise CheckpointError(f"{self.name(key)} is {value!r}; served: {', '.join(choices)}")
        return str(value)

    def only(self, key: str, value: object) -> None:
        """Reject any other value of an option; a missing one has it."""
        found = self._values.get(key)
        if found is not None and (found != value or isinstance(found, bool) != isinstance(value, bool)):
            raise CheckpointError(f"{self.name(key)} is {found!r}; served: {value!r}")

    def text(self, key: str) -> str:
        value = self._value(key, None)
        if not isinstance(value, str) or not value:
            raise CheckpointError(f"{self.name(key)} is {value!r}; served: a text")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of texts."""
        value = self._value(key, None)
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise CheckpointError(f"{self.name(key)} is {value!r}; served: a list of texts")
        return tuple(value)

    def object(self, key: str) -> Fields:
        return Fields(self.name(key), self._value(key, None))

    def objects(self, key: str) -> list[Fields]:
        """A list of objects."""
        value = self._value(key, None)
        if not isinstance(value, list):
            raise CheckpointError(f"{self.name(key)} must be a list: copy the checkpoint again")
        return [Fields(f"{self.name(key)}[{index}]", each) for index, each in enumerate(value)]

    def name(self, key: str) -> str:
        """A key as in messages."""
        return f"{self.where}.{key}"

    def _checked_size(self, key: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= LARGEST:
            raise CheckpointError(f"{self.name(key)} has {value!r}; served: 1 to {LARGEST}")
        return value

    def _checked_count(self, key: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise CheckpointError(f"{self.name(key)} has {repr(value)[:60]}; served: an integer from 0 on")
        return value

    def _value(self, key: str, default: Any) -> Any:
        value = self._values.get(key)
        if value is None and default is None:
            raise CheckpointError(f"{self.where} lacks {key}: the file is incomplete, or of another kind of model")
        return default if value is None else value


def special_tokens(directory: Path) -> dict[str, str]:
    """The special tokens by name, from tokenizer_config.json and special_tokens_map.json.

    As in transformers, the second file wins and is only read beside a tokenizer_config.json of older versions, which
    does not list the added tokens. A token is given as text or as an object with its content; null is none.
    """
    given = read_json(directory / "tokenizer_config.json", required=False)
    if "added_tokens_decoder" not in given:
        given = given | read_json(directory / "special_tokens_map.json", required=False)
    texts = {name: _text(value) for name, value in given.items() if name.endswith("_token")}
    return {name: text for name, text in texts.items() if text is not None}


def _text(value: Any) -> str | None:
    text = value.get("content") if isinstance(value, Mapping) else value
    return text if isinstance(text, str) else None
