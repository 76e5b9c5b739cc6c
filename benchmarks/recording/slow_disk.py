"""A file system that takes a given number of bytes per second: a folder behind FUSE. Needs root and mfusepy.

.venv/bin/python -m benchmarks.recording.slow_disk FOLDER MOUNT --bytes-per-second 1000000
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mfusepy

from benchmarks.chaos.process_facts import wait_for

MOUNT_S = 10.0


class SlowFolder(mfusepy.Operations):
    """Passes every call on to a folder; a write takes the time of its bytes."""

    use_ns = True

    def __init__(self, folder: str, bytes_per_second: float) -> None:
        self._folder = folder
        self._rate = bytes_per_second

    def _path(self, path: str) -> str:
        return os.path.join(self._folder, path.lstrip("/"))  # noqa: PTH118 - FUSE speaks strings

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:  # noqa: ARG002
        found = os.lstat(self._path(path))
        names = ("st_mode", "st_nlink", "st_size", "st_uid", "st_gid")
        times = {f"st_{each}time": getattr(found, f"st_{each}time_ns") for each in "acm"}
        return {name: getattr(found, name) for name in names} | times

    def readdir(self, path: str, fh: int) -> list[str]:  # noqa: ARG002
        return [".", "..", *os.listdir(self._path(path))]  # noqa: PTH208

    def create(self, path: str, mode: int, fi: Any = None) -> int:  # noqa: ARG002
        return os.open(self._path(path), os.O_RDWR | os.O_CREAT, mode)

    def open(self, path: str, flags: int) -> int:
        return os.open(self._path(path), flags)

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:  # noqa: ARG002
        return os.pread(fh, size, offset)

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:  # noqa: ARG002
        time.sleep(len(data) / self._rate)
        return os.pwrite(fh, data, offset)

    def truncate(self, path: str, length: int, fh: int | None = None) -> None:  # noqa: ARG002
        os.truncate(self._path(path), length)

    def release(self, path: str, fh: int) -> None:  # noqa: ARG002
        os.close(fh)

    def unlink(self, path: str) -> None:
        os.unlink(self._path(path))  # noqa: PTH108

    def rename(self, old: str, new: str) -> None:
        os.rename(self._path(old), self._path(new))  # noqa: PTH104

    def mkdir(self, path: str, mode: int) -> None:
        os.mkdir(self._path(path), mode)  # noqa: PTH102

    def chmod(self, path: str, mode: int) -> None:
        os.chmod(self._path(path), mode)  # noqa: PTH101

    def statfs(self, path: str) -> dict[str, Any]:
        found = os.statvfs(self._path(path))
        return {name: getattr(found, name) for name in dir(found) if name.startswith("f_") and name != "f_fsid"}


@contextmanager
def slow_disk(folder: Path, mount: Path, bytes_per_second: float) -> Iterator[None]:
    """Mount it for the time of the context."""
    words = [sys.executable, "-m", __spec__.name, str(folder), str(mount), "--bytes-per-second", f"{bytes_per_second}"]
    process = subprocess.Popen(words)
    try:
        if wait_for(lambda: os.path.ismount(mount), MOUNT_S, 0.02) is None:
            raise TimeoutError("the slow file system could not be mounted")
        yield
    finally:
        subprocess.run(["umount", "-l", str(mount)], check=False)
        process.terminate()
        process.wait()


def main() -> None:
    """Serve the file system until it is unmounted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("mount")
    parser.add_argument("--bytes-per-second", type=float, default=1e6)
    given = parser.parse_args()
    mfusepy.FUSE(SlowFolder(given.folder, given.bytes_per_second), given.mount, foreground=True, nothreads=True)


if __name__ == "__main__":
    main()
