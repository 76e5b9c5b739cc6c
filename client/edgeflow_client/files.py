"""Reads regular files only: a device has no end, and a pipe may block forever."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from pathlib import Path
from typing import BinaryIO


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading; OSError at once for anything else."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # does not wait for a pipe's writer
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        kind = os.strerror(errno.EISDIR) if stat.S_ISDIR(mode) else "Is not a regular file"
        raise OSError(errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL, kind, str(path))
    return os.fdopen(descriptor, "rb")


def read_regular(path: Path, most_bytes: int) -> bytes:
    """The bytes of a regular file; OSError for anything else, and for more than most_bytes."""
    with open_regular(path) as stream:
        data = stream.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise OSError(errno.EFBIG, f"has more than {most_bytes} bytes", str(path))
    return data


def sha256_of(path: Path) -> str:
    """SHA-256 of a file in hexadecimal; OSError if it cannot be read."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
