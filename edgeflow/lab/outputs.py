"""Folders and files that commands write to; a place that cannot be written to is a ConfigError about `out`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from safetensors import SafetensorError

from edgeflow_client.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor


def check_writable(out: Path) -> None:
    """Raise ConfigError for a folder that cannot be created or written to. Nothing is written."""
    nearest = next(each for each in (out.absolute(), *out.absolute().parents) if os.path.lexists(each))
    if not (nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)):
        raise ConfigError(f"out: {nearest} is not a folder that can be written to")


def make_folder(out: Path) -> None:
    """Make a folder and its parents if they do not exist."""
    check_writable(out)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"out: {out} cannot be created: {error.strerror}") from None


@contextmanager
def writing(out: Path) -> Iterator[None]:
    """Turn any error in writing `out`, such as a full disk, into a ConfigError that names it."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise ConfigError(f"out: {out} cannot be written: {reason}") from error


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write an indented JSON file."""
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file under another name first, so that it is either complete or absent.

    The library gives its files mode 0600; this one gets the mode of any new file.
    """
    from safetensors.torch import save_file  # imported here: it loads torch, which not every writer needs

    draft = path.with_name(path.name + ".partial")
    draft.unlink(missing_ok=True)
    draft.touch()
    mode = draft.stat().st_mode & 0o777
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, draft, dict(metadata))
    draft.chmod(mode)
    draft.replace(path)


@contextmanager
def text_file(out: Path) -> Iterator[TextIO]:
    """A new text file in a folder that is created if necessary.

    It replaces an earlier file once it is complete; until then, and if writing fails, the earlier one remains.
    """
    out = out.resolve()
    make_folder(out.parent)
    if out.exists() and not out.is_file():
        raise ConfigError(f"out: {out} is not a regular file: name a file, which is replaced")
    partial = out.with_name(f".{out.name}.{os.getpid()}.partial")
    with writing(out):
        try:
            with partial.open("w", encoding="utf-8") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            partial.replace(out)
        finally:
            partial.unlink(missing_ok=True)
