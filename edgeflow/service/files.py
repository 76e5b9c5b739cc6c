"""Small files that the service is told of: read whole, bounded, and again when they change."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

from edgeflow.errors import ConfigError

MAX_BYTES = 1 << 20
OTHERS = 0o007
Stamp: TypeAlias = tuple[int, int, int]


def read_file(key: str, name: str, *, private: bool = False) -> bytes:
    """The file's bytes; ConfigError names the configuration key. private: refused when everybody may read it."""
    path = Path(name).expanduser()
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
            mode = path.stat().st_mode
    except OSError as error:
        raise ConfigError(f"{key}: cannot read {path}: {error.strerror}") from None
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{key}: {path} exceeds the limit of {MAX_BYTES} bytes")
    if private and mode & OTHERS:
        raise ConfigError(f"{key}: {path} is open to every user of this machine: run chmod o-rwx {path}")
    return data


def stamp(*names: str) -> tuple[Stamp | None, ...]:
    """Differs once a file's contents do; None for a file that is not there."""
    return tuple(_stamp(Path(name).expanduser()) for name in names)


def _stamp(path: Path) -> Stamp | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
