"""Small configured files: bounded reads, and detection of changes."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

from edgeflow_client.errors import ConfigError
from edgeflow_client.files import read_regular

MAX_BYTES = 1 << 20
OTHERS = 0o007
Stamp: TypeAlias = tuple[int, int, int]


def read_file(key: str, name: str, *, private: bool = False) -> bytes:
    """Read a file; ConfigError names the configuration key. private: reject files readable by everybody."""
    path = Path(name).expanduser()
    try:
        data = read_regular(path, MAX_BYTES)
        mode = path.stat().st_mode
    except OSError as error:
        raise ConfigError(f"{key}: cannot read {path}: {error.strerror}") from None
    if private and mode & OTHERS:
        raise ConfigError(f"{key}: {path} is open to every user of this machine: run chmod o-rwx {path}")
    return data


def stamp(*names: str) -> tuple[Stamp | None, ...]:
    """A value per file that changes with its contents; None for a missing file."""
    return tuple(_stamp(Path(name).expanduser()) for name in names)


def _stamp(path: Path) -> Stamp | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
