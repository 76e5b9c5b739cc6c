"""Becomes a process of an image: python inside.py JSON, after unshare or nsenter, as root of new namespaces.

JSON has root, user, groups, environment, workdir, command, and for the first process mounts: [[source, path], ...],
folders of the host, mounted over a root that is then read-only. Needs nothing but Python.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

PR_SET_NO_NEW_PRIVS = 38
PR_CAPBSET_DROP = 24
CAPABILITIES = 41
DEVICES = ("null", "zero", "full", "random", "urandom")
SHARED_MEMORY = "64m"
"""As Docker's default."""


def main() -> None:
    """Mount what the first process needs, drop every privilege, and become the command."""
    asked: dict[str, Any] = json.loads(sys.argv[1])
    root = Path(asked["root"])
    if "mounts" in asked:
        _mounted(root, asked["mounts"])
    libc = ctypes.CDLL(None, use_errno=True)
    os.chroot(root)
    os.chdir(asked["workdir"])
    for capability in range(CAPABILITIES):
        libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    os.setgroups([])
    os.setgid(asked["group"])
    os.setuid(asked["user"])
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "no_new_privs")
    os.execvpe(asked["command"][0], asked["command"], asked["environment"])


def _mounted(root: Path, folders: list[list[str]]) -> None:
    """The mounts of `docker run --read-only --tmpfs /tmp`, seen in this namespace only."""
    _mount("--make-rprivate", "/")
    _mount("--bind", str(root), str(root))
    for source, path in folders:
        _mount("--bind", source, f"{root}{path}")
    _mount("-t", "proc", "proc", f"{root}/proc")
    _mount("-t", "tmpfs", "-o", "mode=1777,noexec,nosuid,nodev", "tmpfs", f"{root}/tmp")
    _mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", f"{root}/dev")
    for name in DEVICES:
        (root / "dev" / name).touch()
        _mount("--bind", f"/dev/{name}", f"{root}/dev/{name}")
    (root / "dev/shm").mkdir()
    _mount("-t", "tmpfs", "-o", f"mode=1777,size={SHARED_MEMORY}", "tmpfs", f"{root}/dev/shm")
    for at, name in enumerate(("stdin", "stdout", "stderr")):
        (root / "dev" / name).symlink_to(f"/proc/self/fd/{at}")
    (root / "dev/fd").symlink_to("/proc/self/fd")
    _mount("-o", "remount,bind,ro", str(root))
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)


def _mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True)


if __name__ == "__main__":
    main()
