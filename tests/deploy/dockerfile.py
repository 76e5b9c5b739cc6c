"""A Dockerfile as its stages and instructions, for tests: no engine is needed."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class ImageStage:
    """A build stage of an image."""

    base: str
    """The image it starts from, with build arguments' defaults put in."""
    name: str
    lines: list[tuple[str, str]] = field(default_factory=list)
    """(instruction, rest)."""

    def all(self, instruction: str) -> list[str]:
        return [rest for each, rest in self.lines if each == instruction]

    def last(self, instruction: str) -> str:
        return self.all(instruction)[-1]

    def command(self, instruction: str) -> list[str]:
        """The words of an instruction in exec form."""
        words: list[str] = json.loads(self.last(instruction))
        return words

    @property
    def environment(self) -> dict[str, str]:
        return dict(word.split("=", 1) for rest in self.all("ENV") for word in rest.split())


def stages(path: Path) -> list[ImageStage]:
    """The stages of a Dockerfile, in order."""
    text = re.sub(r"^\s*#.*\n", "", path.read_text(), flags=re.MULTILINE)
    found: list[ImageStage] = []
    defaults: dict[str, str] = {}
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        instruction, _, rest = line.strip().partition(" ")
        if instruction == "FROM":
            base, _, name = rest.partition(" AS ")
            found.append(ImageStage(re.sub(r"\$\{(\w+)\}", lambda hit: defaults[hit[1]], base), name))
        elif instruction == "ARG" and not found:
            name, _, default = rest.partition("=")
            defaults[name] = default
        elif instruction:
            found[-1].lines.append((instruction, rest.strip()))
    return found
