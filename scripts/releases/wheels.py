"""Wheels of a commit: the same bytes from the same commit, in any folder, at any time and with any umask.

They are built from an export of the commit, with the setuptools of this environment (constraints/cpu.txt pins it). The
server's has the documentation as a site, as images have.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
CLIENT, SERVER, LEROBOT = "client", ".", "plugins/lerobot"
DISTRIBUTIONS = (CLIENT, SERVER, LEROBOT)
"""What a release has, as folders of the tree."""


class ReleaseError(Exception):
    """A release cannot be made; the text says why and what to do."""


def git(*arguments: str) -> str:
    """The output of a git command in this repository; ReleaseError with git's last line if it fails."""
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ReleaseError(f"git {arguments[0]}: {(done.stderr.strip() or 'failed').splitlines()[-1]}")
    return done.stdout.strip()


@contextmanager
def exported(commit: str) -> Iterator[Path]:
    """The files of a commit in a folder that is removed again, with the modes of the commit whatever the umask."""
    with tempfile.TemporaryDirectory(prefix="edgeflow-release-") as folder:
        archive = ["git", "-C", str(ROOT), "-c", "tar.umask=0022", "archive", "--format=tar", commit]
        with subprocess.Popen(archive, stdout=subprocess.PIPE) as packed:
            subprocess.run(["tar", "-x", "-p", "-C", folder], stdin=packed.stdout, check=True)
        if packed.returncode:
            raise ReleaseError(f"git archive {commit} failed: is the commit in this clone?")
        yield Path(folder)


def build_wheels(commit: str, out: Path, distributions: Sequence[str] = DISTRIBUTIONS, *, site: bool = True) -> None:
    """Write the wheels of a commit. site: with the documentation in the server's, for /docs of a service."""
    environment = {
        **os.environ,
        "SOURCE_DATE_EPOCH": git("show", "-s", "--format=%ct", commit),
        "PYTHON": sys.executable,
        "TZ": "UTC",
    }
    wheel = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet"]
    # No isolation: it would take whichever setuptools is the newest today.
    options = ["--no-index", "--no-deps", "--no-build-isolation", "--no-cache-dir", "--wheel-dir", str(out.resolve())]
    with exported(commit) as tree:
        if site and SERVER in distributions:
            _run(["scripts/docs", "--quiet"], tree, environment)
        for each in distributions:
            _run([*wheel, *options, f"./{each}"], tree, environment)


def _run(command: Sequence[str], tree: Path, environment: dict[str, str]) -> None:
    done = subprocess.run(command, cwd=tree, env=environment, umask=0o022, capture_output=True, text=True, check=False)
    if done.returncode:
        said = "\n".join((done.stdout + done.stderr).strip().splitlines()[-20:])
        raise ReleaseError(f"{' '.join(command)} failed:\n{said}")
