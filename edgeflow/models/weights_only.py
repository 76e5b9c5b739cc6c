"""Reads the files that `torch.save` wrote (.pt, .bin): tensors in plain containers, and nothing that could run.

The one module that calls `torch.load`, always with `weights_only=True`, which builds no object but tensors and what
holds them. Sizes are checked before a byte is read: that of the file, and those in its directory where it is a zip
archive. Afterwards every value is checked: tensors, str, int, float, bool, None, dict, list and tuple may be there.
"""

from __future__ import annotations

import os
import re
import warnings
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from edgeflow_client.errors import CheckpointError
from edgeflow_client.files import open_regular

MOST_BYTES = 16 << 30
"""The most that a file may have, whatever its reader expects."""
MOST_RECORDS = 1 << 16
_ZIP = b"PK\x03\x04"
_LEAVES = (str, int, float, bool, type(None))
_KEYS = (str, int)
SHOWN = 80  # characters of a name in messages
_FORBIDDEN_TYPE = re.compile(r"(?:GLOBAL|class|instance of|global) ([A-Za-z_][\w.]*\.\w+)")
"""The name that torch's reader gives for what it does not build."""


def read_state_dict(path: Path, most_bytes: int, *, strip: str = "") -> dict[str, Tensor]:
    """The tensors of a file by name; CheckpointError as in `read_weights_only`, and where it holds anything else.

    strip: a prefix that all names may have, and that is taken away where they do.
    """
    value = read_weights_only(path, most_bytes)
    if not isinstance(value, dict) or not value:
        raise CheckpointError(f"{path} holds {_article(type(value))}, expected tensors by name: copy the file again")
    for name, tensor in value.items():
        if not isinstance(name, str):
            raise CheckpointError(f"{path} has a key of type {_name(type(name))}, expected tensors by name")
        if not isinstance(tensor, Tensor):
            raise CheckpointError(f"{path}: {name[:SHOWN]!r} is {_article(type(tensor))}, expected a tensor")
    if strip and all(name.startswith(strip) for name in value):
        value = {name.removeprefix(strip): tensor for name, tensor in value.items()}
    return dict(value)


def read_weights_only(path: Path, most_bytes: int) -> Any:
    """The value of a file: tensors on the CPU in plain containers.

    most_bytes: what its reader expects at most, of the file and of its tensors. CheckpointError names the file, and the
    type of anything else that it holds. An archive is mapped, so its tensors must be copied before the file changes.
    """
    most = min(most_bytes, MOST_BYTES)
    archive = _check_sizes(path, most)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch, about files that are refused below
            value = torch.load(path, map_location="cpu", weights_only=True, mmap=archive)
    except Exception as error:  # whatever a damaged or hostile file makes of the reader
        raise CheckpointError(_unreadable(path, error)) from None
    _check_values(path, value, most)
    return value


def _check_sizes(path: Path, most: int) -> bool:
    """Check the size of a file, and of what an archive unpacks to. True for an archive."""
    try:
        with open_regular(path) as stream:
            size = os.fstat(stream.fileno()).st_size
            archive = stream.read(len(_ZIP)) == _ZIP
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}: copy the file again") from error
    if size > most:
        raise CheckpointError(f"{path} has {size} bytes, expected at most {most}: it belongs to another model")
    if archive:
        _check_directory(path, most)
    return archive


def _check_directory(path: Path, most: int) -> None:
    """Check the records of an archive: nothing compressed, and no more than expected."""
    try:
        with zipfile.ZipFile(path) as archive:
            records = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise CheckpointError(f"{path} is truncated or damaged: copy the file again") from error
    packed = next((each.filename for each in records if each.compress_type != zipfile.ZIP_STORED), None)
    if packed is not None:
        raise CheckpointError(
            f"{path}: the record {packed[:SHOWN]!r} is compressed: only files as torch.save writes them"
        )
    total = sum(each.file_size for each in records)
    if total > most or len(records) > MOST_RECORDS:
        raise CheckpointError(
            f"{path}: {len(records)} records of {total} bytes, expected at most {MOST_RECORDS} of {most}"
        )


def _unreadable(path: Path, error: Exception) -> str:
    """The message for a file that torch's reader refuses: it gives the type where it was not permitted to build it."""
    named = _FORBIDDEN_TYPE.search(str(error))
    if named:
        return f"{path} holds {named[1][:SHOWN]}: only tensors and plain containers are read, so save only those"
    return f"{path} is truncated, or not a file of tensors as torch.save writes it: copy the file again"


def _check_values(path: Path, value: Any, most: int) -> None:
    """Check that there are only dense tensors of the CPU and plain containers, and not more numbers than expected.

    Each value is visited once, however often and however deeply it is held.
    """
    waiting, visited, total = [value], set[int](), 0
    while waiting:
        each = waiting.pop()
        kind = type(each)
        if kind in _LEAVES or id(each) in visited:
            continue
        visited.add(id(each))
        if kind is Tensor or kind is Parameter:
            total += _checked_bytes(path, each)
        elif kind is dict or kind is OrderedDict:
            _check_keys(path, each)
            waiting += each.values()
        elif kind is list or kind is tuple:
            waiting += each
        else:
            raise CheckpointError(f"{path} holds {_article(kind)}: only tensors and plain containers are read")
    if total > most:
        raise CheckpointError(f"{path}: its tensors take {total} bytes, expected at most {most}")


def _check_keys(path: Path, value: dict[Any, Any]) -> None:
    """Check that only names and numbers are keys. Others are neither printed nor hashed, which may take forever."""
    wrong = next((type(key) for key in value if type(key) not in _KEYS), None)
    if wrong is not None:
        raise CheckpointError(f"{path} has a key of type {_name(wrong)}: only names and integers are read")


def _checked_bytes(path: Path, tensor: Tensor) -> int:
    """The bytes of a tensor's numbers, which a view may have more of than the file."""
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested or tensor.device.type != "cpu":
        raise CheckpointError(f"{path} holds a tensor that is not dense ({tensor.layout}, {tensor.dtype})")
    return tensor.numel() * tensor.element_size()


def _article(kind: type) -> str:
    return f"a value of type {_name(kind)}"


def _name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
