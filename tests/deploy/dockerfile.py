"""A Dockerfile as its stages and instructions, for tests: no engine is needed."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path

ARGUMENT = re.compile(r"\$\{(\w+)\}")


@dataclass
class ImageStage:
    """A build stage of an image."""

    base: str
    """The image it starts from, with build arguments' defaults put in."""
    name: str
    lines: list[tuple[str, str]] = field(default_factory=list)
    """(instruction, rest), with the defaults of its build arguments in place of ${NAME}."""
    arguments: dict[str, str] = field(default_factory=dict)
    """Build arguments declared in the stage, with their defaults."""

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

    @property
    def sources(self) -> list[str]:
        """What it copies from the build context."""
        copies = [rest.split() for rest in self.all("COPY") if not rest.startswith("--from")]
        return [source for words in copies for source in words[:-1]]

    @property
    def built_in(self) -> str:
        """The name of the stage whose files it takes."""
        (stage,) = (rest.split()[0].removeprefix("--from=") for rest in self.all("COPY") if rest.startswith("--from"))
        return stage


def stages(path: Path) -> list[ImageStage]:
    """The stages of a Dockerfile, in order."""
    text = re.sub(r"^\s*#.*\n", "", path.read_text(), flags=re.MULTILINE)
    found: list[ImageStage] = []
    defaults: dict[str, str] = {}
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        instruction, _, rest = line.strip().partition(" ")
        if instruction == "FROM":
            base, _, name = rest.partition(" AS ")
            found.append(ImageStage(ARGUMENT.sub(lambda hit: defaults[hit[1]], base), name))
        elif instruction == "ARG":
            name, assigned, default = rest.strip().partition("=")
            inherited = defaults.get(name, "") if found else ""
            (found[-1].arguments if found else defaults)[name] = default.strip('"') if assigned else inherited
        elif instruction:
            here = found[-1]
            if instruction != "RUN":
                rest = ARGUMENT.sub(lambda hit: here.arguments[hit[1]], rest)  # noqa: B023
            here.lines.append((instruction, rest.strip()))
    return found


def image(path: Path, target: str = "") -> tuple[ImageStage, ImageStage]:
    """The stage that a target is built in and its final one; without a target, of the last stage."""
    found = stages(path)
    final = next(each for each in found if each.name == target) if target else found[-1]
    return next(each for each in found if each.name == final.built_in), final
