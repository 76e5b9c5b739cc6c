"""Bundles: checkpoint directories with outputs recorded from the original implementation.

`cases.json` lists the cases, each with a name; `expected.safetensors` holds their tensors as `<case>.<quantity>`, and
so does `expected_resize_variants.safetensors` if present.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from edgeflow.models.checkpoint import read_tensors
from edgeflow.text.checkpoint_json import read_json
from edgeflow_client.errors import CheckpointError
from edgeflow_client.files import open_regular

Value = TypeVar("Value")
CASES_FILE = "cases.json"
TENSORS_FILE = "expected.safetensors"
VARIANTS_FILE = "expected_resize_variants.safetensors"


class BundleEntry:
    """One entry of `cases`, with typed access: CheckpointError for a value of the wrong kind."""

    def __init__(self, where: str, values: Any) -> None:
        if not isinstance(values, Mapping):
            raise CheckpointError(f"{where} must be an object")
        self.where = where
        self._values = values

    def text(self, key: str) -> str:
        return self._needed(key, self.optional_text(key))

    def optional_text(self, key: str) -> str | None:
        value = self._values.get(key)
        if value is not None and not (isinstance(value, str) and _is_unicode(value)):
            raise CheckpointError(f"{self.where}.{key} must be text")
        return value

    def whole_number(self, key: str) -> int:
        return self._needed(key, self.optional_whole_number(key))

    def optional_whole_number(self, key: str) -> int | None:
        value = self._values.get(key)
        if value is not None and not _is(value, int):
            raise CheckpointError(f"{self.where}.{key} must be an integer")
        return value

    def optional_number(self, key: str) -> float | None:
        value = self._values.get(key)
        if value is not None and not _is(value, (int, float)):
            raise CheckpointError(f"{self.where}.{key} must be a number")
        return None if value is None else float(value)

    def optional_entry(self, key: str) -> BundleEntry | None:
        """An object inside this one."""
        value = self._values.get(key)
        return None if value is None else BundleEntry(f"{self.where}.{key}", value)

    def values(self) -> dict[str, Any]:
        """The whole object, unchecked."""
        return dict(self._values)

    def texts(self, key: str) -> list[str]:
        """A list of texts; empty if the entry is missing."""
        value: list[str] = self._list(key, str, "texts") or []
        return value

    def optional_objects(self, key: str) -> list[dict[str, Any]] | None:
        return self._list(key, dict, "objects")

    def optional_pairs(self, key: str) -> list[list[float]] | None:
        """A list of pairs of numbers."""
        value = self._list(key, list, "pairs of numbers")
        if value is not None and not all(len(each) == 2 and all(_is(n, (int, float)) for n in each) for each in value):
            raise CheckpointError(f"{self.where}.{key} must be a list of pairs of numbers")
        return value

    def ids(self, key: str) -> list[int]:
        return self._needed(key, self.optional_ids(key))

    def optional_ids(self, key: str) -> list[int] | None:
        return self._list(key, int)

    def optional_numbers(self, key: str) -> list[float] | None:
        return self._list(key, (int, float))

    def id_rows(self, key: str) -> list[list[int]]:
        """A list of lists of integers."""
        value = self._needed(key, self._list(key, list, "lists of integers"))
        if not all(_is(each, int) for row in value for each in row):
            raise CheckpointError(f"{self.where}.{key} must be a list of lists of integers")
        return value

    def entries(self, key: str) -> list[BundleEntry]:
        """A list of objects."""
        value = self._needed(key, self.optional_objects(key))
        return [BundleEntry(f"{self.where}.{key}[{index}]", each) for index, each in enumerate(value)]

    def entry(self, key: str) -> BundleEntry:
        """An object inside this one."""
        return self._needed(key, self.optional_entry(key))

    def _needed(self, key: str, value: Value | None) -> Value:
        if value is None:
            raise CheckpointError(f"{self.where} lacks {key}")
        return value

    def _list(self, key: str, kind: type | tuple[type, ...], what: str = "numbers") -> list[Any] | None:
        value = self._values.get(key)
        if value is not None and not (isinstance(value, list) and all(_is(each, kind) for each in value)):
            raise CheckpointError(f"{self.where}.{key} must be a list of {what}")
        return value


def _is(value: object, kind: type | tuple[type, ...]) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _is_unicode(text: str) -> bool:
    """True if a JSON string is valid text: half a surrogate pair is not."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


@dataclass(frozen=True, slots=True)
class RecordedCase:
    """A case of a bundle: its entry in cases.json, and its tensors by the rest of their names."""

    name: str
    entry: BundleEntry
    tensors: Mapping[str, Tensor]


def read_cases(directory: Path) -> list[RecordedCase]:
    """Read all cases; CheckpointError names the case and the wrong entry."""
    entries = read_json(directory / CASES_FILE).get("cases")
    if not isinstance(entries, list) or not entries:
        raise CheckpointError(f"{directory / CASES_FILE} lists no cases")
    if not (directory / TENSORS_FILE).is_file():
        raise CheckpointError(f"{directory} has no {TENSORS_FILE}: name the directory of a bundle")
    tensors = read_tensors(directory / TENSORS_FILE)
    if (directory / VARIANTS_FILE).is_file():
        tensors |= read_tensors(directory / VARIANTS_FILE)
    cases = [_case(BundleEntry(f"{CASES_FILE} cases[{index}]", each), tensors) for index, each in enumerate(entries)]
    names = [case.name for case in cases]
    if len(set(names)) < len(names):
        raise CheckpointError(f"{directory / CASES_FILE}: two cases have the same name")
    return cases


def _case(entry: BundleEntry, tensors: Mapping[str, Tensor]) -> RecordedCase:
    name = entry.text("name")
    prefix = name + "."
    own = {key.removeprefix(prefix): tensor for key, tensor in tensors.items() if key.startswith(prefix)}
    return RecordedCase(name, entry, own)


def read_image(path: Path) -> NDArray[np.uint8]:
    """An image file as RGB [H, W, 3], opened as the published processor opens it."""
    try:
        with open_regular(path) as file, Image.open(file) as picture:
            return np.asarray(picture.convert("RGB"))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise CheckpointError(f"{path}: the image is missing or unreadable: copy the bundle again") from error
