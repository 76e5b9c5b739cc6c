"""The folder of the chat front's socket, and those that services left which were killed."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import tempfile
import time
from pathlib import Path

PREFIX = "edgeflow-"
SOCKET = "chat"
YOUNG_S = 60.0  # a folder of this age may belong to a service that does not listen yet


def make_private_folder() -> Path:
    """A new folder that only this user may enter; abandoned ones are removed. OSError where none can be made."""
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    with contextlib.suppress(OSError):
        for other in folder.parent.glob(f"{PREFIX}*"):
            _remove_abandoned(other)
    return folder


def _remove_abandoned(folder: Path) -> None:
    """Remove a folder of this user's that holds a socket on which nobody listens, and nothing else."""
    with contextlib.suppress(OSError):
        status = folder.lstat()
        ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077
        if not ours or time.time() - status.st_mtime < YOUNG_S:
            return
        if os.listdir(folder) == [SOCKET] and _is_abandoned(folder / SOCKET):  # noqa: PTH208 - names alone
            (folder / SOCKET).unlink()
            folder.rmdir()


def _is_abandoned(path: Path) -> bool:
    """True for a socket on which no process listens, in whatever container it may be."""
    if not stat.S_ISSOCK(path.lstat().st_mode):
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        caller.setblocking(False)
        try:
            caller.connect(str(path))
        except ConnectionRefusedError:
            return True
    return False
