"""An image's files run as a container runs them: read-only, without privileges, in namespaces, with no engine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, TypeVar

from benchmarks.images.archive import ImageArchive

SETTINGS = "/etc/edgeflow"

T = TypeVar("T")
INSIDE = Path(__file__).with_name("inside.py")


class Container:
    """One run of an image, from its first process to its last.

    Needs root, unshare, nsenter and ip. The network has a loopback only: what talks to the service joins it (`beside`).
    """

    def __init__(
        self, archive: ImageArchive, root: Path, volume: Path, output: IO[bytes], settings: Path | None = None
    ) -> None:
        """Start the image's command on its unpacked files, with a folder as its volume; output: of all processes.

        settings: a folder with config.json, instead of the image's.
        """
        config: dict[str, Any] = archive.config["config"]
        user, _, group = config["User"].partition(":")
        self._process = {
            "root": str(root),
            "user": int(user),
            "group": int(group or user),
            "environment": dict(line.split("=", 1) for line in config["Env"]),
            "workdir": config["WorkingDir"],
        }
        self.health = tuple(config["Healthcheck"]["Test"][1:])
        """The words of the health check."""
        (self.volume,) = config["Volumes"]
        """Where the volume is, inside."""
        os.chown(volume, int(user), int(group or user))  # as Docker makes a new volume from the image's folder
        command = [*config["Entrypoint"], *config["Cmd"]]
        mounts = [[str(volume), self.volume], *([[str(settings), SETTINGS]] if settings else [])]
        first = {**self._process, "command": command, "mounts": mounts}
        self._outer = subprocess.Popen(
            ["unshare", "--pid", "--mount", "--net", "--fork", *self._inside(first)],
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        self.pid = until(lambda: next(iter(_children(self._outer.pid)), None), 10, "the first process")
        """The first process, as the host counts; it is number 1 inside."""

    def run(self, *command: str, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
        """Run a command inside, as `docker exec` does."""
        words = self._inside({**self._process, "command": [*command]})
        return _finished(["nsenter", f"--target={self.pid}", "--pid", "--mount", "--net", *words], timeout_s)

    def beside(self, *command: str, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
        """Run a command of the host on the network of the container."""
        return _finished(["nsenter", f"--target={self.pid}", "--net", *command], timeout_s)

    def healthy(self) -> bool:
        """True when the image's health check passes."""
        return self.run(*self.health).returncode == 0

    def processes(self) -> dict[int, dict[str, str]]:
        """/proc/PID/status of each process inside, by the host's number."""
        namespace = Path(f"/proc/{self.pid}/ns/pid").readlink()
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if (folder / "ns/pid").readlink() == namespace:
                    lines = (folder / "status").read_text().splitlines()
                    found[int(folder.name)] = {
                        name: rest.strip() for name, _, rest in (x.partition(":") for x in lines)
                    }
            except OSError:
                continue  # it has just ended
        return found

    def kill(self, number: signal.Signals, timeout_s: float = 30) -> int:
        """Signal the first process; returns the exit code when all are gone."""
        os.kill(self.pid, number)
        return self._outer.wait(timeout_s)

    def close(self) -> None:
        """End everything, however it stands."""
        if self._outer.poll() is None:
            os.kill(self.pid, signal.SIGKILL)  # all others with it: `unshare --kill-child` ends with the change of user
            self._outer.wait(30)

    @staticmethod
    def _inside(process: dict[str, Any]) -> list[str]:
        return [sys.executable, str(INSIDE), json.dumps(process)]


def until(found: Callable[[], T | None], timeout_s: float, what: str) -> T:
    """Wait for `found` to give something, and return it; TimeoutError."""
    end = time.monotonic() + timeout_s
    while not (result := found()):
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {timeout_s:g} s")
        time.sleep(0.05)
    return result


def _finished(command: Sequence[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout_s)


def _children(pid: int) -> list[int]:
    try:
        return [*map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
    except OSError:
        return []
