"""The index of result files: every file is listed with the command that writes it."""

import re
from fnmatch import fnmatch
from pathlib import Path

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
