"""The index of result files: every file is listed with the command that writes it."""

import re
import subprocess
from fnmatch import fnmatch
from pathlib import Path

import pytest

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
LISTED = re.findall(r"^\| `([^`]+)` \|", (RESULTS / "README.md").read_text(), re.MULTILINE)


def pattern(name: str) -> str:
    """The date stands where the index has a star, so that `soak-cpu-*` does not match `soak-cpu-x-2026-11-21`."""
    return name.replace("*", "[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]")


def test_every_result_file_is_listed_once():
    for path in RESULTS.iterdir():
        if path.name != "README.md":
            assert sum(fnmatch(path.stem, pattern(name)) for name in LISTED) == 1, path.name


def test_every_listed_file_is_there():
    names = [path.stem for path in RESULTS.glob("*.json")]
    assert not [name for name in LISTED if not any(fnmatch(stem, pattern(name)) for stem in names)]


def test_commits_that_are_not_in_the_repository_are_told():
    """A clone without history, or none at all, cannot tell."""
    shallow = _git("rev-parse", "--is-shallow-repository")
    if shallow != "false":
        pytest.skip("no history of the repository")
    told = (RESULTS / "README.md").read_text()
    for path in RESULTS.glob("*.json"):
        commits = set(re.findall(r'"commit": "([0-9a-f]{7,40})"', path.read_text()))
        lost = [each for each in commits if not _git("cat-file", "-t", f"{each}^{{commit}}")]
        assert all(f"`{path.stem}`" in told and each in told for each in lost), f"{path.name}: {lost}"


def _git(*arguments: str) -> str:
    """What git says; "" where it fails."""
    done = subprocess.run(["git", "-C", RESULTS, *arguments], capture_output=True, text=True, check=False)
    return done.stdout.strip()
