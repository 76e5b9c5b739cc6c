"""The result files: their contents, the facts of their runs, and the catalogue that says what each is for."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.pages.catalogue import ENTRIES

RESULTS = Path(__file__).parents[1] / "results"
DATED = re.compile(r"(?P<name>.+)-(?P<date>\d{4}-\d\d-\d\d)")


@dataclass(frozen=True, slots=True)
class Result:
    """One result file and its entry in the catalogue."""

    name: str
    """the file's name without date and suffix, by which pages and the catalogue know it"""
    path: Path
    data: dict[str, Any]
    what: str
    """what is measured, in a phrase"""
    command: str
    """the command that measures it; FILE is the result file"""
    page: str
    """the page of docs/benchmarks that shows it"""

    @property
    def date(self) -> str:
        return str(DATED.fullmatch(self.path.stem)["date"])  # type: ignore[index]

    @property
    def facts(self) -> dict[str, Any]:
        """Processor, versions, load and commit, which older files keep at the top."""
        facts = self.data.get("machine", self.data)
        return facts if isinstance(facts, dict) else {}

    @property
    def commit(self) -> str:
        return str(self.facts["commit"])

    @property
    def machine(self) -> str:
        """The processor or GPU, in words."""
        if "sections" in self.data:
            return f"1 {self.data['sections']['facts']['found']['device']}"
        cpu = re.sub(r"\(R\)| Processor", "", str(self.facts["cpu"]))
        return f"{self.facts['cores']} cores of an {cpu}"

    @property
    def link(self) -> str:
        """Where it lies, from a page of docs/benchmarks."""
        return f"../../benchmarks/results/{self.path.name}"

    def picture(self) -> str:
        """The plot of the same name."""
        assert self.path.with_suffix(".png").is_file(), self.path.stem
        return self.link.removesuffix(".json") + ".png"


@cache
def results() -> dict[str, Result]:
    """The result files by name; each name has one file, of its last run."""
    found: dict[str, Result] = {}
    for name, *entry in ENTRIES:
        paths = [path for path in RESULTS.glob("*.json") if _name(path) == name]
        if len(paths) != 1:
            raise ValueError(f"{name}: {len(paths)} result files in {RESULTS.name}/; keep the last one")
        found[name] = Result(name, paths[0], json.loads(paths[0].read_text()), *entry)
    return found


def unlisted() -> list[str]:
    """Files of the results folder that the catalogue does not have."""
    listed = {result.path.stem for result in results().values()}
    return sorted(path.name for path in RESULTS.iterdir() if path.stem not in listed and path.name != "README.md")


def _name(path: Path) -> str | None:
    found = DATED.fullmatch(path.stem)
    return found and found["name"]
